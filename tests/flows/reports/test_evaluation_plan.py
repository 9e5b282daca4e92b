"""The page of an evaluation's placement: devices as measured, divided among tables by the candidate's network."""

import pytest
import torch

from dreamshard.costs import DeviceCosts
from dreamshard.evaluation import EvaluationRow
from dreamshard.placement import Placement, TableSharding
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from flows.reports.evaluation_plan import placement_of, placement_view
from flows.reports.evaluation_report import make_report
from storage.run_records.report_store import CANDIDATE, EvaluationReport
from tests.helpers.tables import tables_of
from tests.helpers.trained import learnt_placer

MEASURED = torch.tensor([[3.0, 1.0, 1.0, 4.0], [2.0, 1.0, 1.0, 6.0]])
TASK = PlacementTask(tables_of([1000] * 3, 16, [4.0, 2.0, 8.0]), 2, 2**40, name="a")
WHOLE = Placement.whole(torch.tensor([0, 1, 1]), 2)
SPLIT = WHOLE.with_table(1, TableSharding("column_wise", ((0, 8), (8, 16)), (1, 0)))


def report_of(split_ms: float = 10.0) -> EvaluationReport:
    """The candidate splits a table by columns; a rule of thumb costs twice as much."""

    def row(placer: str, placement: Placement, ms: float) -> EvaluationRow:
        costs = DeviceCosts.from_phases(MEASURED * (1 if placer == CANDIDATE else 2))
        shards = Shards.of(TASK, placement)
        task, whole = shards.as_task(TASK), Placement.whole(shards.device, 2)
        return EvaluationRow(placer, task, whole, ms, 1.0, ms < float("inf"), 1.0, costs)

    rows = [row(CANDIDATE, SPLIT, split_ms), row("dim_greedy", WHOLE, 20.0), row("random", WHOLE, 20.0)]
    facts = {"dataset": "d", "tasks": "t", "testbed": "simulated", "hardware": "a machine", "training": "x"}
    return make_report("key", rows, "dim_greedy", {}, iteration=1, **facts)


def test_column_shards_of_a_report_are_columns_of_their_tables():
    (row,) = (row for row in report_of().rows if row.placer == CANDIDATE)
    assert row.tables == ("t0", "t1[0:8]", "t1[8:16]", "t2")
    assert placement_of(TASK, row) == SPLIT


def test_the_page_shows_measured_devices_beside_what_is_to_be_beaten():
    view = placement_view(report_of(), [TASK], learnt_placer())
    assert (view.costs, view.title, view.before.name) == ("measured", "a", "dim_greedy")
    torch.testing.assert_close(view.side.shares.device_phases_ms, MEASURED.double())
    torch.testing.assert_close(view.before.shares.device_phases_ms, 2 * MEASURED.double())
    assert max(view.side.device_ms) == pytest.approx(10)
    assert view.side.device_ms.index(max(view.side.device_ms)) == 1
    assert view.side.where("t1") == "0, 1"
    assert dict(view.facts)["gain over dim_greedy, all tasks"] == "+50.0 %"


def test_a_candidate_that_did_not_fit_has_no_page():
    assert placement_view(report_of(float("inf")), [TASK], learnt_placer()) is None
