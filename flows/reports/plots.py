"""Pictures of an evaluation and of a training, for MLflow and for the page in Prefect."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flows.reports import PHASE_COLOURS
from storage.run_records.checkpoints import Metrics
from storage.run_records.report_store import EvaluationReport, MeasuredRow

COST, ERROR, REWARD = "#4c72b0", "#dd8452", "#55a868"


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
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes: Sequence[Axes] = figure.subplots(1, 2, sharey=True)
    shown = rows_of_shown_task(report)
    for axis, row in zip(axes, shown, strict=True):
        bottom = [0.0 for _ in row.devices]
        for phase, colour in PHASE_COLOURS.items():
            heights = [device[phase] for device in row.devices]
            axis.bar(
                range(len(heights)), heights, bottom=bottom, width=0.7, color=colour, label=phase.replace("_", " ")
            )
            bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
        axis.axhline(max(bottom), color="#444444", linewidth=1, linestyle="--")
        measured = f"slowest device {max(bottom):.3g} ms" if row.fits else "did not fit"
        axis.set(title=f"{row.placer}: {measured}", xlabel="device")
        axis.xaxis.set_major_locator(MaxNLocator(nbins=16, integer=True))
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(y=0.08)
    axes[0].set_ylabel("measured ms")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(f"Task {shown[0].task} on {report.hardware}; all wait for the slowest device", fontsize=11)
    return figure


def plot_predictions(report: EvaluationReport) -> Figure:
    """Predicted against measured cost of every placement that was evaluated."""
    figure = Figure(figsize=(6.5, 5), layout="constrained")
    axis = figure.subplots()
    costs = []
    for number, line in enumerate(report.placers):
        own = line.placer == report.candidate
        points = [
            (row.overall_ms, row.predicted_ms)
            for row in report.rows
            if row.placer == line.placer and row.overall_ms is not None and row.predicted_ms is not None
        ]
        costs += [cost for point in points for cost in point]
        axis.scatter(
            [measured for measured, _ in points],
            [predicted for _, predicted in points],
            s=46 if own else 18,
            marker="*" if own else "o",
            color="black" if own else f"C{number}",
            zorder=3 if own else 2,
            label=line.placer,
        )
    ends = [0.95 * min(costs, default=1.0), 1.05 * max(costs, default=1.0)]
    low, high = ([share * end for end in ends] for share in (0.95, 1.05))
    axis.fill_between(ends, low, high, color="#eeeeee", label="5 % off")
    axis.plot(ends, ends, color="grey", linewidth=0.8)
    error = report.placer(report.candidate).predicted_mape
    axis.set(xlabel="measured ms", ylabel="predicted ms", xlim=ends, ylim=ends, aspect="equal")
    off = "none fits" if error is None else f"{100 * error:.1f} % off on average"
    axis.set_title(f"Held-out placements: {off}", fontsize=11)
    axis.legend(fontsize="small", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def plot_learning(history: Sequence[Metrics]) -> Figure:
    """By iteration: cost of the placements measured, held-out error of the cost network, reward of the policy."""
    figure = Figure(figsize=(7, 6.5), layout="constrained")
    axes: Sequence[Axes] = figure.subplots(3, 1, sharex=True)
    curves = {
        "measured_cost_ms": ("mean measured\ncost, ms", COST, 1),
        "cost_heldout_mape": ("cost network, error on\nnew placements, %", ERROR, 100),
        "policy_reward": ("policy reward", REWARD, 1),
    }
    for axis, (name, (label, colour, scale)) in zip(axes, curves.items(), strict=True):
        known = [(step, scale * entry[name]) for step, entry in enumerate(history, start=1) if name in entry]
        axis.plot([step for step, _ in known], [value for _, value in known], color=colour, marker="o")
        axis.set_ylabel(label)
        axis.grid(axis="y", color="#eeeeee")
        axis.spines[["top", "right"]].set_visible(False)
    axes[1].set_ylim(bottom=0)
    axes[2].set_xlabel("iteration")
    axes[2].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[2].set_xlim(0.5, len(history) + 0.5)
    figure.suptitle("Training; the error is taken before the new placements are learned from", fontsize=11)
    return figure
