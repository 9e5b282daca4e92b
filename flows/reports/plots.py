"""Pictures of an evaluation and of a training, for MLflow and for the page in Prefect."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from storage.run_records.checkpoints import Metrics
from storage.run_records.report_store import EvaluationReport, MeasuredRow

_PHASE_COLOURS = {
    "forward_compute": "#4c72b0",
    "forward_comm": "#9ab3d9",
    "backward_comm": "#f2b48a",
    "backward_compute": "#dd8452",
}
_CURVES = {
    "measured_cost_ms": ("mean measured\ncost, ms", "#4c72b0", 1),
    "cost_heldout_mape": ("cost network, error on\nnew placements, %", "#dd8452", 100),
    "policy_reward": ("policy reward", "#55a868", 1),
}
"""Figures of an iteration that are drawn: label, colour, scale."""


def plots(report: EvaluationReport, history: Sequence[Metrics]) -> dict[str, Figure]:
    """The plots by file name."""
    predictions = {"predicted_vs_measured": plot_predictions(report)} if report.is_predicted else {}
    return {"placement": plot_placements(report), **predictions, "learning_curve": plot_learning(history)}


def rows_of_shown_task(report: EvaluationReport) -> list[MeasuredRow]:
    """One task as placed by the best rule of thumb and then by the candidate: the fixed model, or that of median gain."""
    rows = {(row.placer, row.task): row for row in report.rows}

    def relative_cost(task: str) -> float:
        candidate, baseline = (rows[placer, task].overall_ms for placer in (report.candidate, report.reference))
        return math.inf if candidate is None else 0.0 if baseline is None else candidate / baseline

    ranked = sorted(report.task_names, key=relative_cost)
    task = report.model or ranked[len(ranked) // 2]
    return [rows[report.reference, task], rows[report.candidate, task]]


def plot_placements(report: EvaluationReport) -> Figure:
    """Per-device stacked bars of one held-out task: the best rule of thumb beside the candidate."""
    figure, shown = Figure(figsize=(9, 4.5), layout="constrained"), rows_of_shown_task(report)
    axes: Sequence[Axes] = figure.subplots(1, 2, sharey=True)
    for axis, row in zip(axes, shown, strict=True):
        bottom = [0.0] * len(row.devices)
        for phase, colour in _PHASE_COLOURS.items():
            heights = [device[phase] for device in row.devices]
            axis.bar(range(len(heights)), heights, 0.7, bottom, color=colour, label=phase.replace("_", " "))
            bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
        axis.axhline(max(bottom), color="#444444", linewidth=1, linestyle="--")
        measured = f"slowest device {max(bottom):.3g} ms" if row.fits else "did not fit"
        axis.set(title=f"{row.placer}: {measured}", xlabel="device")
        axis.xaxis.set_major_locator(MaxNLocator(nbins=16, integer=True))
        axis.margins(y=0.08)
    axes[0].set_ylabel("measured ms")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(f"Task {shown[0].task} on {report.hardware}; all wait for the slowest device", fontsize=11)
    return figure


def plot_predictions(report: EvaluationReport) -> Figure:
    """Predicted against measured cost of every placement that was evaluated."""
    figure, costs = Figure(figsize=(6.5, 5), layout="constrained"), list[float]()
    axis = figure.subplots()
    for number, line in enumerate(report.placers):
        own = line.placer == report.candidate
        points = [
            (row.overall_ms, row.predicted_ms)
            for row in report.rows
            if row.placer == line.placer and row.overall_ms is not None and row.predicted_ms is not None
        ]
        costs += [cost for point in points for cost in point]
        colour, size, marker = ("black", 46, "*") if own else (f"C{number}", 18, "o")
        measured, predicted = zip(*points, strict=True) if points else ((), ())
        axis.scatter(measured, predicted, s=size, color=colour, marker=marker, label=line.placer)
    ends = [0.95 * min(costs, default=1.0), 1.05 * max(costs, default=1.0)]
    axis.fill_between(
        ends, [0.95 * end for end in ends], [1.05 * end for end in ends], color="#eeeeee", label="5 % off"
    )
    axis.plot(ends, ends, color="grey", linewidth=0.8)
    error = report.placer(report.candidate).predicted_mape
    axis.set(xlabel="measured ms", ylabel="predicted ms", xlim=ends, ylim=ends, aspect="equal")
    off = "none fits" if error is None else f"{100 * error:.1f} % off on average"
    axis.set_title(f"Held-out placements: {off}", fontsize=11)
    axis.legend(fontsize="small", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def plot_learning(history: Sequence[Metrics]) -> Figure:
    """By iteration: cost of the placements measured, held-out error of the cost network, reward of the policy."""
    figure = Figure(figsize=(7, 6.5), layout="constrained")
    axes: Sequence[Axes] = figure.subplots(3, 1, sharex=True)
    for axis, (name, (label, colour, scale)) in zip(axes, _CURVES.items(), strict=True):
        known = {step: scale * entry[name] for step, entry in enumerate(history, start=1) if name in entry}
        axis.plot([*known], [*known.values()], color=colour, marker="o")
        axis.set_ylabel(label)
        axis.grid(axis="y", color="#eeeeee")
    axes[1].set_ylim(bottom=0)
    axes[2].set(xlabel="iteration", xlim=(0.5, len(history) + 0.5))
    axes[2].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle("Training; the error is taken before the new placements are learned from", fontsize=11)
    return figure
