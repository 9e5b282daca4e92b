"""A model trains under our plans as it does unsharded, for every way to shard that TorchRec runs on CPU ranks."""

import pytest

pytest.importorskip("torchrec")

from tests.helpers.ports import free_port
from tests.helpers.sharded_model import DIM, HALF, ROWS, TABLES, Outcome, features, outcomes, shardings

pytestmark = [pytest.mark.processes, pytest.mark.slow]

EXACT, OF_HALVES = 1e-5, 2e-2


@pytest.fixture(scope="module", params=[(2, 2), (4, 2)], ids=["2 ranks", "2 hosts of 2 ranks"])
def trained(request, tmp_path_factory) -> list[Outcome]:
    """What each rank saw in a step."""
    found = outcomes(*request.param, free_port(), tmp_path_factory.mktemp("plan"))
    failures = "\n".join(outcome.failure for outcome in found if outcome.failure)
    assert not failures, failures
    assert len(found) == request.param[0]
    return found


@pytest.mark.parametrize("feature", features())
def test_the_vectors_are_those_of_the_unsharded_model(trained, feature):
    assert max(outcome.forward[feature] for outcome in trained) <= (OF_HALVES if feature in HALF else EXACT)


@pytest.mark.parametrize("table", TABLES)
def test_the_weights_after_a_step_are_those_of_the_unsharded_model(trained, table):
    ways = shardings(len(trained), 2)[table]
    copies = len(trained) if ways.sharding_type == "data_parallel" else 1
    assert sum(outcome.held.get(table, 0) for outcome in trained) == copies * ROWS * DIM
    tolerance = OF_HALVES if table.endswith(HALF) else EXACT
    assert max(outcome.weights.get(table, 0.0) for outcome in trained) <= tolerance
    assert trained[0].ways[table] == ways.sharding_type


def test_the_planner_gives_all_ranks_one_plan_that_runs(trained):
    assert all(outcome.planned for outcome in trained)


def test_an_error_of_the_planner_is_raised_on_all_ranks(trained):
    assert all("given for ['nothing']" in outcome.refused for outcome in trained)
