"""What a run shows of itself: the evaluation table, the plots in MLflow, and Prefect's artifacts."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext

from dreamshard.costs import DeviceCosts
from flows.checkpoints import Metrics
from flows.evaluations import Report
from flows.timeline import PHASE_COLOURS, costs_of, plot_timeline


def gain_text(gain: Mapping[str, float] | None) -> str:
    """A paired gain with its 95 % interval, e.g. `+4.2 % (+2.0 to +6.3)`."""
    if gain is None:
        return "-"
    if math.isinf(gain["mean_gain"]):
        return "did not fit" if gain["mean_gain"] < 0 else "fits where the other does not"
    if not math.isfinite(gain["low"]):
        return f"{100 * gain['mean_gain']:+.1f} %"
    return f"{100 * gain['mean_gain']:+.1f} % ({100 * gain['low']:+.1f} to {100 * gain['high']:+.1f})"


def summary_rows(report: Report) -> list[dict[str, Any]]:
    """The evaluation table: one row per placer, cheapest last."""
    return [
        {
            "placer": line["placer"],
            "measured ms": f"{line['overall_ms']:.3f}" if math.isfinite(line["overall_ms"]) else "did not fit",
            "predicted ms": f"{line['predicted_ms']:.3f}",
            "gain over random": gain_text(line["over_random"]),
            f"gain over {report['best_baseline']}": gain_text(line["over_best_baseline"]),
            "legal": "yes" if line["legal"] else "no",
            "place ms": f"{line['place_ms']:.2f}",
        }
        for line in report["summary"]
    ]


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """`rows` as a Markdown table."""
    if not rows:
        return ""
    head = list(rows[0])
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(str(row[name]) for name in head) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def evaluation_metrics(report: Report) -> Metrics:
    """The figures by the names that every version has in MLflow."""
    candidate = next(line for line in report["summary"] if line["placer"] == report["candidate"])
    over_best = candidate["over_best_baseline"]
    metrics = {
        "eval_overall_ms": candidate["overall_ms"],
        "eval_gain_over_random": candidate["over_random"]["mean_gain"],
        "eval_gain_over_best_baseline": over_best["mean_gain"],
        "eval_gain_over_best_baseline_low": over_best["low"],
        "eval_gain_over_best_baseline_high": over_best["high"],
        "eval_predicted_mape": report["predicted_mape"],
        "eval_place_ms": candidate["place_ms"],
    }
    for line in report["summary"]:
        name = "champion" if line["placer"].startswith("champion") else line["placer"]
        metrics[f"eval_overall_ms.{name}"] = line["overall_ms"]
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def plots(report: Report, history: Sequence[Metrics]) -> dict[str, Figure]:
    """The plots by file name; no time line where nothing shown did fit."""
    timelines = {"timeline": plot_timeline(shown)} if (shown := _shown(report)) else {}
    return timelines | {
        "placement": plot_placements(report),
        "predicted_vs_measured": plot_predictions(report),
        "learning_curve": plot_learning(history),
    }


def plot_placements(report: Report) -> Figure:
    """Per-device stacked bars of one held-out task: the candidate beside the best rule of thumb."""
    task = report["rows"][0]["task"]
    shown = [report["best_baseline"], report["candidate"]]
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, placer in zip(axes, shown, strict=True):
        row = next(row for row in report["rows"] if row["placer"] == placer and row["task"] == task)
        devices = range(len(row["devices"]))
        bottom = [0.0 for _ in devices]
        for phase, colour in PHASE_COLOURS.items():
            heights = [device[phase] for device in row["devices"]]
            axis.bar(devices, heights, bottom=bottom, color=colour, label=phase.replace("_", " "))
            bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
        title = f"{max(bottom):.2f} ms" if row["legal"] else "did not fit"
        axis.set(title=f"{placer}: {title}", xlabel="device", xticks=list(devices))
    axes[0].set_ylabel(f"measured ms, {task}")
    axes[1].legend(fontsize="small")
    return figure


def _shown(report: Report) -> dict[str, DeviceCosts]:
    """Measured costs of one held-out task by the best rule of thumb and by the candidate, where they fit."""
    task, names = report["rows"][0]["task"], (report["best_baseline"], report["candidate"])
    rows = [row for row in report["rows"] if row["task"] == task and row["placer"] in names and row["legal"]]
    return {f"{task}, {row['placer']}": costs_of(row["devices"]) for row in rows}


def plot_predictions(report: Report) -> Figure:
    """Predicted against measured cost of every placement that was evaluated."""
    figure = Figure(figsize=(5, 5), layout="constrained")
    axis = figure.subplots()
    for placer in [line["placer"] for line in report["summary"]]:
        rows = [row for row in report["rows"] if row["placer"] == placer and row["legal"]]
        axis.scatter([row["overall_ms"] for row in rows], [row["predicted_ms"] for row in rows], s=14, label=placer)
    largest = max((max(row["overall_ms"], row["predicted_ms"]) for row in report["rows"] if row["legal"]), default=1)
    axis.plot([0, largest], [0, largest], color="grey", linewidth=0.8)
    axis.set(xlabel="measured ms", ylabel="predicted ms", title="held-out placements")
    axis.legend(fontsize="x-small")
    return figure


def plot_learning(history: Sequence[Metrics]) -> Figure:
    """Measured cost and the cost network's held-out error by iteration."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    steps = range(1, len(history) + 1)
    axis.plot(steps, [entry["measured_cost_ms"] for entry in history], marker="o", label="measured cost, ms")
    axis.set(xlabel="iteration", ylabel="mean measured cost, ms")
    error = axis.twinx()
    known = [
        (step, entry["cost_heldout_mape"])
        for step, entry in zip(steps, history, strict=True)
        if "cost_heldout_mape" in entry
    ]
    error.plot([step for step, _ in known], [100 * value for _, value in known], color="#dd8452", marker="s")
    error.set_ylabel("held-out error of the cost network, %", color="#dd8452")
    return figure


def publish_report(report: Report, history: Sequence[Metrics], reason: str, links: Mapping[str, str]) -> None:
    """The evaluation table and the Markdown report as artifacts of this flow run; nothing outside of one."""
    if FlowRunContext.get() is None:
        return
    create_table_artifact(summary_rows(report), key="dreamshard-evaluation", description=reason)
    create_markdown_artifact(
        markdown_report(report, history, reason, links), key="dreamshard-report", description=reason
    )


def markdown_report(report: Report, history: Sequence[Metrics], reason: str, links: Mapping[str, str]) -> str:
    """The report: outcome, evaluation, one placement in figures, learning curve, pictures, links."""
    curve = [
        {"iteration": step + 1} | {name: f"{value:.4g}" for name, value in entry.items()}
        for step, entry in enumerate(history)
    ]
    names = list(dict.fromkeys(name for entry in curve for name in entry))
    parts = [
        "# dreamshard",
        f"**{reason}**",
        "## Held-out tasks",
        markdown_table(summary_rows(report)),
        "## One placement, device by device (measured ms)",
        markdown_table(_device_rows(report)),
        "## Learning curve",
        markdown_table([{name: entry.get(name, "-") for name in names} for entry in curve]),
        "## Pictures",
        *(f"![{name}]({_data_uri(figure)})" for name, figure in plots(report, history).items()),
        "## Where",
        *(f"- {name}: {link}" for name, link in links.items()),
    ]
    return "\n\n".join(parts)


def _device_rows(report: Report) -> list[dict[str, Any]]:
    task = report["rows"][0]["task"]
    rows = []
    for placer in (report["best_baseline"], report["candidate"]):
        row = next(row for row in report["rows"] if row["placer"] == placer and row["task"] == task)
        for d, phases in enumerate(row["devices"]):
            figures = {phase.replace("_", " "): f"{ms:.3f}" for phase, ms in phases.items()}
            rows.append({"placer": placer, "device": d} | figures | {"sum": f"{sum(phases.values()):.3f}"})
    return rows


def _data_uri(figure: Figure) -> str:
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=60)
    return f"data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}"
