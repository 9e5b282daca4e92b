"""Pictures of an evaluation, for MLflow and for the page in Prefect; MLflow draws the curves of training itself."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from storage.run_records.report_store import EvaluationReport

_PHASE_COLOURS = {
    "forward_compute": "#4c72b0",
    "forward_comm": "#9ab3d9",
    "backward_comm": "#f2b48a",
    "backward_compute": "#dd8452",
}


def plots(report: EvaluationReport) -> dict[str, Figure]:
    """The plots by file name."""
    predictions = {"predicted_vs_measured": plot_predictions(report)} if report.is_predicted else {}
    return {"placement": plot_placements(report), **predictions}


def plot_placements(report: EvaluationReport) -> Figure:
    """Per-device stacked bars of the model, or of the first held-out task: the best rule of thumb next to the candidate."""
    figure, task = Figure(figsize=(9, 4.5), layout="constrained"), report.model or report.task_names[0]
    axes: Sequence[Axes] = figure.subplots(1, 2, sharey=True)
    rows = {row.placer: row for row in report.rows if row.task == task}
    for axis, row in zip(axes, (rows[report.reference], rows[report.candidate]), strict=True):
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
    figure.suptitle(f"Task {task} on {report.hardware}; all wait for the slowest device", fontsize=11)
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
    axis.plot(ends, ends, color="grey", linewidth=0.8)
    error = report.placer(report.candidate).predicted_mape
    axis.set(xlabel="measured ms", ylabel="predicted ms", xlim=ends, ylim=ends, aspect="equal")
    off = "none fits" if error is None else f"{100 * error:.1f} % off on average"
    axis.set_title(f"Held-out placements: {off}", fontsize=11)
    axis.legend(fontsize="small", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
