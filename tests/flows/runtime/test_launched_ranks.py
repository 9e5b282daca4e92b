"""Which ranks a testbed of the flows measures on."""

import pytest

from flows.runtime.launched_ranks import for_testbed


@pytest.mark.parametrize(
    ("rank", "count"), [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("PMI_RANK", "PMI_SIZE")]
)
def test_a_plain_command_in_every_process_of_a_launcher_is_refused(monkeypatch, rank, count):
    monkeypatch.setenv(rank, "3")
    monkeypatch.setenv(count, "8")
    with pytest.raises(ValueError, match=r"one of 8 processes of a launcher.* start `-m flows.cli.ranks`"):
        for_testbed("cluster")
    assert for_testbed("simulated") is None
    monkeypatch.setenv(count, "1")
    assert for_testbed("cluster") is None
