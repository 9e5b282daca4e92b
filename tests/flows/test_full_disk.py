"""A disk that is full or fills up during a chain: one sentence, nothing half-written, and it continues with space."""

import os
from pathlib import Path

import pytest

from tests.chaos.full_disk import attempt, small_disk
from tests.flows.commands import Dreamshard, failed_with

pytestmark = pytest.mark.long


def test_a_disk_with_too_little_space_is_refused_before_anything_starts(
    dreamshard: Dreamshard, tmp_path: Path, monkeypatch
):
    from flows.cli import in_process

    monkeypatch.setattr(in_process, "NEEDED_BYTES", 2**60)
    done = dreamshard("run", "--recipe", "smoke", "--testbed", "simulated", home=tmp_path / "home")
    failed_with(done, "MiB free and a run with its databases needs", "nothing was started")
    assert not (tmp_path / "home" / "mlflow.db").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_a_disk_that_fills_up_is_one_sentence_and_the_same_command_finishes_with_space(tmp_path: Path):
    try:
        with small_disk(tmp_path) as disk:
            failed, problems = attempt(disk, free_kib=950)
    except PermissionError as error:
        pytest.skip(str(error))  # a container without the right to mount
    assert failed, "so little space must not be enough"
    assert problems == []
