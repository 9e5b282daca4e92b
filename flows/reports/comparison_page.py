"""What a comparison of any placers shows of itself: its table, its Markdown, its figures for MLflow."""

import math
from typing import Any

from prefect.artifacts import create_markdown_artifact
from prefect.context import FlowRunContext

from dreamshard.formatting import markdown_table
from flows.reports.comparisons import Report
from flows.reports.evaluation_page import gain_text
from storage.run_records.checkpoints import Metrics


def rows(report: Report) -> list[dict[str, Any]]:
    """One row per placer, cheapest last; gains are over the placer that was named first."""
    reference = report["reference"]
    return [
        {
            "placer": line["placer"],
            "measured ms": _figure(line["overall_ms"], "did not fit"),
            f"gain over {reference}": gain_text(report["comparisons"][line["placer"]].get(reference)),
            "prediction error": "-" if line["predicted_mape"] is None else f"{line['predicted_mape']:.1%}",
            "rank correlation": _figure(line["predicted_spearman"], "-"),
            "legal": "yes" if line["legal"] else "no",
            "place ms": f"{line['place_ms']:.2f}",
        }
        for line in report["summary"]
    ]


def heldout_sentence(report: Report) -> str:
    """Which tasks are held out for all that are compared."""
    tasks, versions = report["heldout"]["tasks"], ", ".join(report["versions"].values())
    return (
        f"all {len(tasks)} tasks ({tasks[0]} to {tasks[-1]}) are held out for all: drawn from the "
        f"{report['heldout']['tables']} tables of dataset {report['dataset']} that no version of {versions} was trained on"
    )


def markdown(report: Report) -> str:
    """The page of the comparison: its table, every pair, every task."""
    names = [line["placer"] for line in report["summary"]]
    pairs = [
        {"placer": name} | {f"over {other}": gain_text(report["comparisons"][name].get(other)) for other in names}
        for name in names
    ]
    costs = {(row["task"], row["placer"]): _figure(row["overall_ms"], "did not fit") for row in report["rows"]}
    by_task = [{"task": task} | {name: costs[task, name] for name in names} for task in report["heldout"]["tasks"]]
    parts = [
        f"# {', '.join(report['comparisons'])}",
        f"Measured on {report['testbed']}; {heldout_sentence(report)}.",
        markdown_table(rows(report)),
        "Prediction error and rank correlation are those of a version's cost network on all placements measured here.",
        "## Every pair: measured cost saved (95 % interval, paired by task)",
        markdown_table(pairs),
        "## Every task, measured ms",
        markdown_table(by_task),
    ]
    return "\n\n".join(parts)


def metrics(report: Report, name: str) -> Metrics:
    """What MLflow keeps of one version's part, finite figures only."""
    line = next(line for line in report["summary"] if line["placer"] == name)
    gain = report["comparisons"][name].get(report["reference"], {})
    found = {
        "compared_overall_ms": line["overall_ms"],
        "compared_place_ms": line["place_ms"],
        "compared_predicted_mape": line["predicted_mape"],
        "compared_predicted_spearman": line["predicted_spearman"],
        "compared_gain_over_first": gain.get("mean_gain"),
        "compared_gain_over_first_low": gain.get("low"),
        "compared_gain_over_first_high": gain.get("high"),
    }
    return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}


def publish(report: Report) -> None:
    """The page as an artifact of this flow run; nothing outside of one."""
    if FlowRunContext.get() is not None:
        create_markdown_artifact(markdown(report), key="dreamshard-comparison", description=heldout_sentence(report))


def _figure(value: float | None, otherwise: str) -> str:
    return otherwise if value is None or not math.isfinite(value) else f"{value:.3f}"
