"""What a run shows of itself: the evaluation table, its figures for MLflow, and Prefect's artifacts."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext

from dreamshard.formatting import markdown_table
from flows.reports.evaluations import Report
from flows.reports.plots import plots, shown_task
from storage.run_records.checkpoints import Metrics


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


def task_rows(report: Report) -> list[dict[str, Any]]:
    """What was measured, placer by placer and task by task."""
    names = ("task", "placer", "overall_ms", "predicted_ms", "legal", "place_ms")
    return [{name: row[name] for name in names} for row in report["rows"]]


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


def publish_report(report: Report, text: str, reason: str) -> None:
    """The evaluation table and the Markdown report as artifacts of this flow run; nothing outside of one."""
    if FlowRunContext.get() is None:
        return
    create_table_artifact(summary_rows(report), key="dreamshard-evaluation", description=reason)
    create_markdown_artifact(text, key="dreamshard-report", description=reason)


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
        *([f"Note: {report['caveat']}."] if report.get("caveat") else []),
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
    task = shown_task(report)
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
