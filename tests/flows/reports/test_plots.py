from dataclasses import replace

import pytest

from dreamshard.costs import PHASES
from dreamshard.evaluation import PairedComparison
from flows.reports.plots import plot_learning, plot_placements, plot_predictions, plots
from flows.reports.report_tables import measured_rows
from storage.run_records.report_store import EvaluationReport, MeasuredRow, PlacerFigures

GAIN = PairedComparison(fits=True, mean_gain=0.25, low=0.1, high=0.4, num_tasks=3)


def row(placer: str, task: str, first_ms: float, *, fits: bool = True) -> MeasuredRow:
    """Device 0 takes `first_ms`, device 1 takes 1 ms; a quarter of it in each phase."""
    return MeasuredRow(
        placer=placer,
        task=task,
        device=(0, 1),
        overall_ms=max(first_ms, 1.0) if fits else None,
        predicted_ms=2.0,
        place_ms=1.0,
        devices=tuple(dict.fromkeys(PHASES, ms / 4) for ms in (first_ms, 1.0)),
    )


@pytest.fixture
def report() -> EvaluationReport:
    rows = [row("random", task, 4.0) for task in ("a", "b", "c")]
    rows += [row("dreamshard", task, ms) for task, ms in (("a", 3.9), ("b", 2.0), ("c", 3.0))]
    return EvaluationReport(
        key="key",
        dataset="d",
        tasks="t",
        testbed="simulated",
        hardware="simulated v100",
        reference="random",
        placers=(
            PlacerFigures(placer="random", overall_ms=4.0, predicted_ms=2.0, place_ms=1.0),
            PlacerFigures(placer="dreamshard", overall_ms=3.0, predicted_ms=2.0, place_ms=1.0, predicted_mape=0.05),
        ),
        gains={"random": {}, "dreamshard": {"random": GAIN}},
        rows=tuple(rows),
    )


def test_bars_stack_to_the_measured_sums_of_both_placers(report):
    rule, candidate = plot_placements(report).axes
    assert rule.get_title() == "random: slowest device 4 ms"
    assert candidate.get_title() == "dreamshard: slowest device 3 ms"
    tops = [bar.get_y() + bar.get_height() for bar in candidate.containers[-1]]
    assert tops == pytest.approx([3.0, 1.0])


def test_a_placement_that_did_not_fit_is_named_and_not_drawn_as_a_prediction(report):
    report = replace(report, rows=(row("random", "a", 4.0), row("dreamshard", "a", 4.0, fits=False)))
    assert plot_placements(report).axes[1].get_title() == "dreamshard: did not fit"
    points = {each.get_label(): each.get_offsets().tolist() for each in plot_predictions(report).axes[0].collections}
    assert points["random"] == [[4.0, 2.0]]
    assert points["dreamshard"] == []
    assert [(line["overall_ms"], line["legal"]) for line in measured_rows(report)] == [
        (4.0, True),
        (float("inf"), False),
    ]


def test_every_plot_has_its_file_name(report):
    history = [{"measured_cost_ms": 2.0, "policy_reward": 0.1}, {"measured_cost_ms": 1.5, "cost_heldout_mape": 0.1}]
    assert set(plots(report, history)) == {"placement", "predicted_vs_measured", "learning_curve"}
    error = plot_learning(history).axes[1].lines[0]
    assert (error.get_xdata().tolist(), error.get_ydata().tolist()) == ([2], [10.0])
