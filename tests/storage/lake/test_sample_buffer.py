import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from dreamshard.tasks import PlacementTask
from storage.filesystem import list_file_infos
from storage.lake.lake import Lake
from storage.lake.sample_buffer import collecting
from tests.helpers.samples import make_sample


def measured(lake: Lake) -> list[list[int]]:
    return [sample.placement.device.tolist() for sample in lake.read_cost_samples("run")]


def files(lake: Lake, dataset: str) -> int:
    return len(list_file_infos(lake.root / dataset))


def test_samples_kept_one_by_one_are_one_file_of_the_lake(lake: Lake, version: str, task: PlacementTask):
    placements = [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    with suppress(RuntimeError), collecting(lake, "run", 1, version) as keep:
        for placement in placements:
            keep(make_sample(task, placement))
        assert (measured(lake), files(lake, "sample_buffer")) == ([], 3)
        raise RuntimeError("rank 1 died")
    assert measured(lake) == placements
    assert (files(lake, "cost_samples"), files(lake, "sample_buffer")) == (1, 0)


KILLED = """
import sys
from contextlib import suppress
from pathlib import Path
import storage.lake.sample_buffer
from tests.helpers.samples import make_sample, four_tables
from dreamshard.tasks import PlacementTask
from storage.lake import Lake

def stop(*_):
    print("kept", flush=True)
    sys.stdin.read()

buffer, task = storage.lake.sample_buffer, PlacementTask(four_tables(), 2, 10**6)
buffer.remove = stop
with buffer.collecting(Lake(Path(sys.argv[1]), Path("unused")), "run", 1, sys.argv[2]) as keep:
    keep(make_sample(task, [0, 1, 0, 1]))
    keep(make_sample(task, [1, 1, 0, 1]))
    if __doc__ == "before":
        stop()
"""


@pytest.mark.processes
@pytest.mark.parametrize("moment", ["before", "while"])
def test_a_killed_process_loses_and_duplicates_no_sample(lake: Lake, version: str, task: PlacementTask, moment: str):
    """Killed before its samples were in the lake, and after, but while the buffer held them too."""
    command = [sys.executable, "-c", f"'{moment}'\n{KILLED}", str(lake.root), version]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "kept\n"
        os.kill(process.pid, signal.SIGKILL)
    assert (files(lake, "sample_buffer"), len(measured(lake))) == (2, 0 if moment == "before" else 2)
    with collecting(lake, "run", 1, version):
        assert sorted(measured(lake)) == [[0, 1, 0, 1], [1, 1, 0, 1]]
    assert (files(lake, "sample_buffer"), len(measured(lake))) == (0, 2)
