"""A disk that is full or fills up during a chain: one sentence, nothing half-written, and it continues with space."""

import os
from pathlib import Path

import pytest

from tests.chaos.full_disk import attempt, small_disk

pytestmark = pytest.mark.long


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_a_disk_that_fills_up_is_one_sentence_and_the_same_command_finishes_with_space(tmp_path: Path):
    try:
        with small_disk(tmp_path) as disk:
            failed, problems = attempt(disk, free_kib=950)
    except PermissionError as error:
        pytest.skip(str(error))  # a container without the right to mount
    assert failed, "so little space must not be enough"
    assert problems == []
