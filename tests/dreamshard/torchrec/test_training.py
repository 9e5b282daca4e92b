import pytest

pytest.importorskip("torchrec")

from tests.helpers import sharded_dlrm
from tests.helpers.ports import free_port
from tests.helpers.sharded_model import failures

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.parametrize(("ranks", "per_host", "hosts"), [(2, 2, 1), (4, 2, 1), (4, 2, 2)])
def test_a_model_trains_under_our_plans_as_it_does_unsharded(ranks, per_host, hosts, tmp_path):
    """by every sharding type that TorchRec runs on CPU ranks, by a plan file and by the planner."""
    failed = failures(ranks, per_host, free_port(), tmp_path, hosts)
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize(("mode", "ranks"), [("reshard", 2), ("groups", 4), ("memory", 2)])
def test_a_dlrm_trains_and_takes_memory_as_planned(mode, ranks, tmp_path):
    """Moved from one plan to another between two steps, in two groups under `DMPCollection`, and in bytes."""
    sharded_dlrm.run(mode, ranks, tmp_path)
