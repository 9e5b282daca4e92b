"""Which ranks a testbed of the flows measures on."""

import pytest

from flows.runtime.launched_ranks import for_testbed


def test_a_plain_command_in_every_process_of_torchrun_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(ValueError, match=r"torchrun started 8 processes.* start `-m flows.cli.ranks`"):
        for_testbed("cluster")
    assert for_testbed("simulated") is None
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert for_testbed("cluster") is None
