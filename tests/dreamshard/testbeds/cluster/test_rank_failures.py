"""One rank's trouble is one error, leaves no process, and the next measurement starts new ranks."""

import os
import signal
import subprocess
import sys

import pytest

from dreamshard.testbeds.base import MeasurementError
from tests.helpers.cluster_testbed import BATCH, TABLES, WITH_FAULTY, children, have_ended, open_cluster, placement
from tests.helpers.lookups import EvenLookups, FaultyLookups
from tests.helpers.tables import roomy_task, tables_of_dims

pytestmark = pytest.mark.processes


def test_a_rank_that_raises_is_one_error_and_the_next_measurement_starts_new_ranks():
    bed = open_cluster(FaultyLookups(BATCH, fault="raise"))
    bed.measure(roomy_task(TABLES), placement(0, 0, 1))
    pids = bed.rank_pids()
    message = r"rank 1 of 2 while reading lookups, with 1 tables on it \(faulty\): OSError: the disk is on fire"
    with pytest.raises(MeasurementError, match=message) as caught:
        bed.measure(roomy_task(WITH_FAULTY), placement(0, 1))
    assert "lookups.py" in caught.value.__notes__[0]
    assert have_ended(pids)
    assert bed.rank_pids() == []
    assert bed.measure(roomy_task(TABLES), placement(0, 0, 1)).overall_ms > 0
    assert set(bed.rank_pids()).isdisjoint(pids)
    pids = bed.rank_pids()
    bed.close()
    assert have_ended(pids)


def test_a_rank_that_is_killed_is_one_error_with_its_signal():
    before = children()
    bed = open_cluster(FaultyLookups(BATCH, fault="kill"))
    with pytest.raises(
        MeasurementError, match=r"measuring task failed on rank 0 of 2 while reading lookups.*killed by SIGKILL"
    ):
        bed.measure(roomy_task(WITH_FAULTY), placement(1, 0))
    assert bed.rank_pids() == []
    assert children() == before


def test_a_rank_that_is_killed_between_measurements_is_told_apart_from_the_ranks_that_end_with_it():
    bed = open_cluster()
    bed.measure(roomy_task(TABLES), placement(0, 0, 1))
    pids = bed.rank_pids()
    os.kill(pids[1], signal.SIGKILL)
    assert have_ended(pids[1:])
    with pytest.raises(MeasurementError, match=r"rank 1 of 2 while waiting for work.*killed by SIGKILL"):
        bed.measure(roomy_task(TABLES), placement(0, 0, 1))
    assert bed.measure(roomy_task(TABLES), placement(0, 0, 1)).overall_ms > 0
    bed.close()


def test_a_rank_that_hangs_is_one_error_with_where_it_hangs():
    before = children()
    bed = open_cluster(FaultyLookups(BATCH, fault="hang"), timeout_s=1.0)
    with pytest.raises(MeasurementError, match=r"rank 1 of 2 while reading lookups.*no answer within 1 s") as caught:
        bed.measure(roomy_task(WITH_FAULTY), placement(0, 1))
    assert "lookups.py" in caught.value.__notes__[0]
    assert children() == before


def test_lookups_outside_the_table_are_one_error():
    bed = open_cluster(EvenLookups(BATCH, rows=50))
    with pytest.raises(
        MeasurementError, match=r"rank 1 of 2 .*table table-0 has index 49 outside the table of 20 rows"
    ):
        bed.measure(roomy_task(tables_of_dims([4, 4], rows=20)), placement(1, 1))
    bed.close()


def test_ranks_end_and_tidy_up_when_the_process_that_started_them_is_killed(tmp_path):
    script = (
        "import tests.dreamshard.testbeds.cluster.test_rank_failures as t\n"
        "bed = t.open_cluster(t.FaultyLookups(t.BATCH, fault='hang'));"
        "bed.measure(t.roomy_task(t.TABLES), t.placement(0, 0, 1)); print(*bed.rank_pids(), flush=True);"
        "bed.measure(t.roomy_task(t.WITH_FAULTY), t.placement(0, 1))"
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
