"""The pictures of an evaluation and of a training, for MLflow and for the report in Prefect."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flows.reports.evaluations import Report
from flows.reports.timeline import PHASE_COLOURS, costs_of, plot_timeline
from storage.run_records.checkpoints import Metrics

COST, ERROR, REWARD = "#4c72b0", "#dd8452", "#55a868"


def plots(report: Report, history: Sequence[Metrics]) -> dict[str, Figure]:
    """The plots by file name; no time line where nothing shown did fit."""
    fitting = [row for row in _shown(report) if row["legal"]]
    costs = {row["placer"]: costs_of(row["devices"]) for row in fitting}
    timelines = {"timeline": plot_timeline(costs)} if costs else {}
    return timelines | {
        "placement": plot_placements(report),
        "predicted_vs_measured": plot_predictions(report),
        "learning_curve": plot_learning(history),
    }


def shown_task(report: Report) -> str:
    """The held-out task that stands for all: the candidate's gain on it is the one in the middle."""
    cost = {(row["placer"], row["task"]): row["overall_ms"] for row in report["rows"]}
    tasks = list(dict.fromkeys(row["task"] for row in report["rows"]))
    ranked = sorted(tasks, key=lambda task: cost[report["candidate"], task] / cost[report["best_baseline"], task])
    return str(ranked[len(ranked) // 2])


def plot_placements(report: Report) -> Figure:
    """Per-device stacked bars of one held-out task: the best rule of thumb beside the candidate."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes: Sequence[Axes] = figure.subplots(1, 2, sharey=True)
    for axis, row in zip(axes, _shown(report), strict=True):
        devices = range(len(row["devices"]))
        bottom = [0.0 for _ in devices]
        for phase, colour in PHASE_COLOURS.items():
            heights = [device[phase] for device in row["devices"]]
            axis.bar(devices, heights, bottom=bottom, width=0.7, color=colour, label=phase.replace("_", " "))
            bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
        axis.axhline(max(bottom), color="#444444", linewidth=1, linestyle="--")
        measured = f"slowest device {max(bottom):.3g} ms" if row["legal"] else "did not fit"
        axis.set(title=f"{row['placer']}: {measured}", xlabel="device")
        axis.xaxis.set_major_locator(MaxNLocator(nbins=16, integer=True))
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(y=0.08)
    axes[0].set_ylabel("measured ms")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(f"Task {shown_task(report)} on {report['testbed']}; all wait for the slowest device", fontsize=11)
    return figure


def plot_predictions(report: Report) -> Figure:
    """Predicted against measured cost of every placement that was evaluated."""
    figure = Figure(figsize=(6.5, 5), layout="constrained")
    axis = figure.subplots()
    for number, placer in enumerate(line["placer"] for line in report["summary"]):
        rows = [row for row in report["rows"] if row["placer"] == placer and row["legal"]]
        own = placer == report["candidate"]
        axis.scatter(
            [row["overall_ms"] for row in rows],
            [row["predicted_ms"] for row in rows],
            s=46 if own else 18,
            marker="*" if own else "o",
            color="black" if own else f"C{number}",
            zorder=3 if own else 2,
            label=placer,
        )
    values = [row[name] for row in report["rows"] if row["legal"] for name in ("overall_ms", "predicted_ms")] or [1.0]
    ends = [0.95 * min(values), 1.05 * max(values)]
    axis.fill_between(
        ends, [0.95 * end for end in ends], [1.05 * end for end in ends], color="#eeeeee", label="5 % off"
    )
    axis.plot(ends, ends, color="grey", linewidth=0.8)
    error = report["predicted_mape"]
    axis.set(xlabel="measured ms", ylabel="predicted ms", xlim=ends, ylim=ends, aspect="equal")
    axis.set_title(f"Held-out placements: {100 * error:.1f} % off on the mean", fontsize=11)
    axis.legend(fontsize="small", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def plot_learning(history: Sequence[Metrics]) -> Figure:
    """By iteration: cost of the placements measured, held-out error of the cost network, reward of the policy."""
    figure = Figure(figsize=(7, 6.5), layout="constrained")
    axes: Sequence[Axes] = figure.subplots(3, 1, sharex=True)
    _curve(axes[0], history, "measured_cost_ms", "mean measured\ncost, ms", COST)
    _curve(axes[1], history, "cost_heldout_mape", "cost network, error on\nnew placements, %", ERROR, 100)
    _curve(axes[2], history, "policy_reward", "policy reward", REWARD)
    axes[1].set_ylim(bottom=0)
    axes[2].set_xlabel("iteration")
    axes[2].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[2].set_xlim(0.5, len(history) + 0.5)
    figure.suptitle("Training; the error is taken before the new placements are learnt from", fontsize=11)
    return figure


def _curve(axis: Axes, history: Sequence[Metrics], name: str, label: str, colour: str, scale: float = 1.0) -> None:
    known = [(step, scale * entry[name]) for step, entry in enumerate(history, start=1) if name in entry]
    axis.plot([step for step, _ in known], [value for _, value in known], color=colour, marker="o")
    axis.set_ylabel(label)
    axis.grid(axis="y", color="#eeeeee")
    axis.spines[["top", "right"]].set_visible(False)


def _shown(report: Report) -> list[Mapping[str, Any]]:
    """One held-out task as placed by the best rule of thumb, then by the candidate."""
    task = shown_task(report)
    own = {row["placer"]: row for row in report["rows"] if row["task"] == task}
    return [own[report["best_baseline"]], own[report["candidate"]]]
