import pytest

from dreamshard.formatting import markdown_table
from flows.reports.evaluation_page import gain_text, summary_rows
from flows.reports.plots import plot_learning, plot_placements, plot_predictions, plots, shown_task

PHASES = ("forward_compute", "forward_comm", "backward_comm", "backward_compute")


def row(placer: str, task: str, first_ms: float, legal: bool = True) -> dict:
    """Device 0 takes `first_ms`, device 1 takes 1 ms; a quarter of it in each phase."""
    devices = [dict.fromkeys(PHASES, ms / 4) for ms in (first_ms, 1.0)]
    overall = max(first_ms, 1.0) if legal else float("inf")
    return {"placer": placer, "task": task, "overall_ms": overall, "predicted_ms": 2.0, "legal": legal,
            "place_ms": 1.0, "devices": devices}  # fmt: skip


@pytest.fixture
def report() -> dict:
    rows = [row("random", task, 4.0) for task in ("a", "b", "c")]
    rows += [row("dreamshard", task, ms) for task, ms in (("a", 3.9), ("b", 2.0), ("c", 3.0))]
    gain = {"mean_gain": 0.25, "low": 0.1, "high": 0.4, "num_tasks": 3}
    summary = [
        {"placer": name, "overall_ms": ms, "predicted_ms": 2.0, "over_random": over, "over_best_baseline": over,
         "legal": True, "place_ms": 1.0}
        for name, ms, over in (("random", 4.0, None), ("dreamshard", 3.0, gain))
    ]  # fmt: skip
    return {"candidate": "dreamshard", "best_baseline": "random", "testbed": "simulated", "predicted_mape": 0.05,
            "rows": rows, "summary": summary}  # fmt: skip


def test_the_task_shown_is_the_one_with_the_gain_in_the_middle(report):
    assert shown_task(report) == "c"


def test_bars_stack_to_the_measured_sums_of_both_placers(report):
    rule, candidate = plot_placements(report).axes
    assert rule.get_title() == "random: slowest device 4 ms"
    assert candidate.get_title() == "dreamshard: slowest device 3 ms"
    tops = [bar.get_y() + bar.get_height() for bar in candidate.containers[-1]]
    assert tops == pytest.approx([3.0, 1.0])


def test_a_placement_that_did_not_fit_is_said_and_not_drawn_as_a_prediction(report):
    report["rows"] = [row("random", "a", 4.0), row("dreamshard", "a", 4.0, legal=False)]
    assert plot_placements(report).axes[1].get_title() == "dreamshard: did not fit"
    points = {each.get_label(): each.get_offsets().tolist() for each in plot_predictions(report).axes[0].collections}
    assert points["random"] == [[4.0, 2.0]]
    assert points["dreamshard"] == []


def test_every_plot_has_its_file_name(report):
    history = [{"measured_cost_ms": 2.0, "policy_reward": 0.1}, {"measured_cost_ms": 1.5, "cost_heldout_mape": 0.1}]
    assert set(plots(report, history)) == {"timeline", "placement", "predicted_vs_measured", "learning_curve"}
    error = plot_learning(history).axes[1].lines[0]
    assert (error.get_xdata().tolist(), error.get_ydata().tolist()) == ([2], [10.0])


def test_the_table_says_gains_with_their_intervals(report):
    table = summary_rows(report)
    assert [line["gain over random"] for line in table] == ["-", "+25.0 % (+10.0 to +40.0)"]
    assert markdown_table(table).splitlines()[0].startswith("| placer | measured ms |")
    assert gain_text({"mean_gain": float("-inf"), "low": float("-inf"), "high": 0.0}) == "did not fit"
