"""One rank's trouble is one error, leaves no process, and the next measurement starts new ranks."""

import os
import signal
import subprocess
import sys
import time

import pytest

from dreamshard.testbeds.base import MeasurementError
from tests.helpers.cluster_testbed import BATCH, TABLES, children, have_ended, open_cluster, placement, with_fault
from tests.helpers.lookups import EvenLookups, FaultyLookups
from tests.helpers.tables import roomy_task, tables_of_dims

pytestmark = pytest.mark.processes


def test_ranks_that_raise_die_or_hang_are_one_error_each_and_new_ones_start():
    bed = open_cluster(FaultyLookups(BATCH), timeout_s=20.0)
    assert bed.measure(roomy_task(TABLES), placement(0, 0, 1)).overall_ms > 0
    pids = bed.ranks.pids()
    others = children() - set(pids)
    with pytest.raises(MeasurementError, match="rank 1 of 2: OSError: the disk is on fire") as caught:
        bed.measure(with_fault("raise"), placement(0, 1))
    assert "lookups.py" in caught.value.__notes__[0]
    assert have_ended(pids)
    assert bed.ranks.pids() == []

    begun = time.monotonic()
    with pytest.raises(MeasurementError, match="rank 0 of 2: it was killed by SIGKILL"):
        bed.measure(with_fault("kill"), placement(1, 0))
    assert time.monotonic() - begun < 60  # with the start of new ranks

    assert bed.measure(roomy_task(TABLES), placement(0, 0, 1)).overall_ms > 0
    assert set(bed.ranks.pids()).isdisjoint(pids)
    os.kill(bed.ranks.pids()[1], signal.SIGKILL)  # between measurements
    assert have_ended(bed.ranks.pids()[1:])
    with pytest.raises(MeasurementError, match="rank 1 of 2: it was killed by SIGKILL"):
        bed.measure(roomy_task(TABLES), placement(0, 0, 1))

    with pytest.raises(MeasurementError, match="rank 1 of 2: TimeoutError: no answer within 20 s") as caught:
        bed.measure(with_fault("hang"), placement(0, 1))
    assert "lookups.py" in caught.value.__notes__[0]
    assert bed.ranks.pids() == []
    bed.close()
    assert children() == others


def test_lookups_outside_the_table_are_one_error():
    bed = open_cluster(EvenLookups(BATCH, rows=50))
    with pytest.raises(
        MeasurementError, match=r"rank 1 of 2: .*table table-0 has index 49 outside the table of 20 rows"
    ):
        bed.measure(roomy_task(tables_of_dims([4, 4], rows=20)), placement(1, 1))
    bed.close()


def test_ranks_end_and_tidy_up_when_their_driver_is_killed(tmp_path):
    script = (
        "import tests.dreamshard.testbeds.test_rank_failures as t\n"
        "bed = t.open_cluster(t.FaultyLookups(t.BATCH));"
        "bed.measure(t.roomy_task(t.TABLES), t.placement(0, 0, 1)); print(*bed.ranks.pids(), flush=True);"
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
