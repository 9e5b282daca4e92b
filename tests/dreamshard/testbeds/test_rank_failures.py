import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from dreamshard.testbeds.base import MeasurementError
from tests.helpers.cluster_testbed import BATCH, TABLES, open_cluster, placement
from tests.helpers.lookups import FaultyLookups
from tests.helpers.tables import roomy_task, tables_of_dims

pytestmark = pytest.mark.processes


def with_fault(fault: str):
    """Two tables, the second of which `FaultyLookups` does not give."""
    return roomy_task(tables_of_dims([4, 8], rows=500, names=["healthy", fault]))


def pids_of(bed) -> list[int]:
    """Of its ranks, in the order of devices."""
    return [process.pid for process in bed.ranks.launcher._processes]


def have_ended(pids: list[int]) -> bool:
    """Whether all processes end in time; psutil's own waiting would take their exit codes from the launcher."""
    for pid in pids:
        with suppress(ProcessLookupError), os.fdopen(os.pidfd_open(pid)) as process:
            if not select.select([process], [], [], 60)[0]:
                return False
    return True


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("fault", ["raise", "kill", "hang", "outside"])
def test_a_failing_rank_is_one_error_and_leaves_no_process(fault):
    bed = open_cluster(FaultyLookups(BATCH), timeout_s=10.0)
    bed.measure(roomy_task(TABLES), placement(0, 0, 1))
    pids, begun = pids_of(bed), time.monotonic()
    others = children() - set(pids)  # such as multiprocessing's tracker of resources
    with pytest.raises(MeasurementError) as caught:
        bed.measure(with_fault(fault), placement(0, 1))
    assert time.monotonic() - begun < 30
    assert ("lookups.py" in caught.value.__notes__[0]) == (fault != "kill"), "a killed rank has no traceback"
    assert have_ended(pids)
    with pytest.raises(MeasurementError):
        bed.measure(roomy_task(TABLES), placement(0, 0, 1))
    bed.close()
    assert children() <= others


def test_a_rank_that_dies_between_measurements_fails_the_next():
    bed = open_cluster()
    bed.measure(roomy_task(TABLES), placement(0, 0, 1))
    os.kill(pids_of(bed)[1], signal.SIGKILL)
    assert have_ended(pids_of(bed)[1:])
    with pytest.raises(MeasurementError):
        bed.measure(roomy_task(TABLES), placement(0, 0, 1))


def test_ranks_end_and_tidy_up_when_their_driver_is_killed(tmp_path):
    script = (
        "import tests.dreamshard.testbeds.test_rank_failures as t\n"
        "bed = t.open_cluster(t.FaultyLookups(t.BATCH));"
        "bed.measure(t.roomy_task(t.TABLES), t.placement(0, 0, 1)); print(*t.pids_of(bed), flush=True);"
        "bed.measure(t.with_fault('hang'), t.placement(0, 1))"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert have_ended(pids)
    assert not list(tmp_path.iterdir())
