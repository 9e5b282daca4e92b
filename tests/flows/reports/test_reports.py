from dataclasses import replace

import pytest
import torch

from dreamshard.costs import DeviceCosts
from dreamshard.evaluation import EvaluationRow, placement_identity
from dreamshard.tables import Placement, TableSharding
from dreamshard.tasks import PlacementTask
from flows.reports.evaluation_report import make_report, placers_table, prediction_sentence
from tests.helpers.samples import MEASURED, four_tables
from tests.helpers.tables import with_table

SUBJECT = {"key": "key", "dataset": "d", "tasks": "t", "training": "t1", **MEASURED}


def row(placer: str, task: str, overall_ms: float, predicted_ms: float = 1.0, place_ms: float = 1.0) -> EvaluationRow:
    """Device 0 takes `overall_ms`, device 1 takes 1 ms; a quarter of it in each phase."""
    costs = DeviceCosts(torch.tensor([[overall_ms / 4] * 4, [0.25] * 4]))
    of = PlacementTask(four_tables(), 2, 2**30, name=task)
    placement = Placement.whole(torch.tensor([0, 0, 1, 1]), 2)
    return EvaluationRow(placer, of, placement, overall_ms, predicted_ms, place_ms, costs)


ROWS = [
    row("random", "a", 20.0),
    row("dim_greedy", "a", 10.0, predicted_ms=12.0, place_ms=2.0),
    row("size_greedy", "a", 12.0),
    row("dreamshard", "a", 9.0),
    row("random", "b", 30.0),
    row("dim_greedy", "b", 20.0, predicted_ms=18.0, place_ms=4.0),
    row("size_greedy", "b", 21.0),
    row("dreamshard", "b", 18.0),
]


def report_of(change=lambda line: line, subject=SUBJECT):
    """The report of the rows, of which those of the candidate are changed."""
    rows = [change(row) if row.placer == "dreamshard" else row for row in ROWS]
    return make_report(rows, "dim_greedy", {}, **subject)


def test_a_report_has_figures_of_every_placer_and_all_gains():
    report = report_of()
    assert [line.placer for line in report.placers] == ["random", "size_greedy", "dim_greedy", "dreamshard"]
    rule = report.placer("dim_greedy")
    assert (rule.overall_ms, rule.predicted_ms, rule.place_ms, rule.predicted_mape) == (15, {}, 3, None)
    assert report.gain("dim_greedy", "dim_greedy") is None
    assert report.gains["dreamshard"]["dim_greedy"].mean_gain == pytest.approx(0.1)
    assert report.gains["dreamshard"]["random"].mean_gain == pytest.approx(1 - (0.45 * 0.6) ** 0.5)
    assert report.task_names == ("a", "b")
    rows = [row("dim_greedy", task, 1.0, place_ms=ms) for task, ms in (("a", 504.0), ("b", 1.0), ("c", 2.0))]
    for model in (None, "a"):
        (line,) = make_report(rows, "dim_greedy", {}, model=model, **SUBJECT).placers
        assert line.place_ms == 2.0, "the first compiles"
    saved = {line["placer"]: line["dreamshard saves"] for line in placers_table(report)}
    assert (saved["dreamshard"], saved["dim_greedy"][:7]) == ("-", "+10.0 %")
    assert "dim_greedy saves" in placers_table(report_of(subject=SUBJECT | {"training": None}))[0], (
        "the first of a comparison"
    )


class Priced:
    """A cost network that predicts one cost for all placements."""

    def __init__(self, cost_ms: float):
        self.cost_ms = cost_ms

    def predict(self, task, placement):
        return DeviceCosts(torch.full((2, 4), self.cost_ms / 4))


def test_every_plan_is_priced_by_every_network_and_errors_are_learned():
    by = {"dreamshard": Priced(18.5), "champion 1": Priced(20.0)}
    rows = [*ROWS, *(row("champion 1", task, ms) for task, ms in (("a", 18.0), ("b", 19.0)))]
    report = make_report(rows, "dim_greedy", by, model="b", **SUBJECT)
    assert report.placer("random").predicted_ms == {"dreamshard": 18.5, "champion 1": 20.0}
    assert {"predicted by dreamshard", "predicted by champion 1"} <= placers_table(report)[0].keys()
    said = prediction_sentence(report)
    assert "disagree most on placements of random: 18.500 ms by dreamshard, 20.000 ms by champion 1." in said
    (learned,) = report.mispredicted
    assert learned == placement_identity(rows[0].task, rows[0].placement)
    assert make_report(rows, "dim_greedy", by, **SUBJECT).mispredicted == (), "tables of a pool stay held out"
    alike = make_report(ROWS, "dim_greedy", {"dreamshard": Priced(18.5), "champion 1": Priced(18.6)}, **SUBJECT)
    assert "disagree" not in prediction_sentence(alike)


def test_placers_that_split_tables_by_columns_are_marked():
    task = PlacementTask(four_tables(), 2, 2**30, name="a")
    halves = TableSharding("column_wise", ((0, 16), (16, 32)), (1, 1))
    split = {"task": task, "placement": with_table(Placement.whole([0, 1, 0, 1], 2), 3, halves)}
    table = placers_table(report_of(lambda line: replace(line, **split) if line.task.name == "a" else line))
    assert {line["placer"] for line in table if line["tables"] == "split"} == {"dreamshard"}
