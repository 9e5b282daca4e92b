"""Evaluation reports as Markdown pages, and as artifacts of a flow run in Prefect."""

import base64
import io
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from prefect.artifacts import create_markdown_artifact
from prefect.context import FlowRunContext

from dreamshard.files.text import markdown_table
from flows.reports import report_tables
from flows.reports.plots import plots, rows_of_shown_task
from storage.run_records.checkpoints import Metrics
from storage.run_records.report_store import EvaluationReport

_ABOUT = {
    "paper": "Algorithm `paper`: DreamShard as published, whose policy places without a search.",
    "autoshard": "Algorithm `autoshard`: AutoShard as published. It balances predicted compute and knows nothing of "
    "all-to-alls, so compare compute below as well as the cost of a step. Reward and errors of the learning curve are of "
    "compute.",
}
"""What a training optimises, by the candidate's name, if it is not the predicted cost of a step."""


def evaluation_page(report: EvaluationReport, history: Sequence[Metrics], reason: str, links: Mapping[str, str]) -> str:
    """The evaluation of a training: outcome, table, one placement in figures, learning curve, pictures, links."""
    curve = [
        {"iteration": step} | {name: f"{value:.4g}" for name, value in entry.items()}
        for step, entry in enumerate(history, start=1)
    ]
    names = list(dict.fromkeys(name for entry in curve for name in entry))
    parts = [
        f"# {report_tables.title(report)}",
        f"**{reason}**",
        _ABOUT.get(report.candidate, ""),
        markdown_table(report_tables.evaluation_table(report)),
        *_notes(report),
        prediction_sentence(report),
        "## Learning curve",
        markdown_table([{name: entry.get(name, "-") for name in names} for entry in curve]),
        "## Pictures",
        *(f"![{name}]({_data_uri(figure)})" for name, figure in plots(report, history).items()),
        "## One placement, device by device (measured ms)",
        markdown_table(_device_table(report)),
        "## Where",
        *(f"- {name}: {link}" for name, link in links.items()),
    ]
    return "\n\n".join(filter(None, parts))


def comparison_page(report: EvaluationReport) -> str:
    """A comparison of versions: its table, every pair, every task."""
    paired_by = "task" if report.model is None else "round"
    parts = [
        f"# {', '.join(report.gains)}",
        f"{report_tables.title(report)}; {heldout_sentence(report)}.",
        markdown_table(report_tables.comparison_table(report)),
        *_notes(report),
        "Prediction error and rank correlation are of a version's own cost network on all placements measured here.",
        f"## Every pair: measured cost saved (95 % interval, paired by {paired_by})",
        markdown_table(report_tables.pairs_table(report)),
        "## Every task, measured ms",
        markdown_table(report_tables.costs_by_task(report)),
    ]
    return "\n\n".join(filter(None, parts))


def heldout_sentence(report: EvaluationReport) -> str:
    """Says which tasks, or of a fixed model which placements, are held out for all compared versions."""
    tasks, versions = report.task_names, ", ".join(report.versions.values())
    if report.model is not None:
        return (
            f"one fixed model of dataset {report.dataset} and {len(tasks) - 1} drifted variants of it: no table is held out, "
            f"but {report.heldout_placements} of the placements measured are, which no version of {versions} was trained on; "
            f"intervals are over {report_tables.intervals_over(report)}"
        )
    return (
        f"all {len(tasks)} tasks ({tasks[0]} to {tasks[-1]}) are held out for all: drawn from the "
        f"{report.unseen_tables} tables of dataset {report.dataset} that no version of {versions} was trained on"
    )


def prediction_sentence(report: EvaluationReport) -> str:
    """How well the candidate predicts placements that it was not trained on."""
    error = report.placer(report.candidate).predicted_mape
    if not report.is_predicted:
        return f"No cost of a step is predicted: {report.candidate} predicts compute only."
    if error is None:
        return "No placement measured here was held out, so the prediction error is not known."
    return f"Prediction error: {error:.1%} on {report.heldout_placements} placements that were not trained on."


def publish_evaluation(page: str, reason: str) -> None:
    """Show an evaluation's page as an artifact of this flow run; does nothing outside of one."""
    if FlowRunContext.get() is not None:
        create_markdown_artifact(page, key="dreamshard-report", description=reason)


def publish_comparison(report: EvaluationReport) -> None:
    """Show the comparison's page as an artifact of this flow run; does nothing outside of one."""
    if FlowRunContext.get() is not None:
        page, sentence = comparison_page(report), heldout_sentence(report)
        create_markdown_artifact(page, key="dreamshard-comparison", description=sentence)


def _notes(report: EvaluationReport) -> list[str]:
    return [report_tables.learnt_sentence(report), f"Note: {report.caveat}." if report.caveat else ""]


def _device_table(report: EvaluationReport) -> report_tables.Table:
    rows = []
    for row in rows_of_shown_task(report):
        for d, phases in enumerate(row.devices):
            figures = {phase.replace("_", " "): f"{ms:.3f}" for phase, ms in phases.items()}
            rows.append({"placer": row.placer, "device": d} | figures | {"sum": f"{sum(phases.values()):.3f}"})
    return rows


def _data_uri(figure: Figure) -> str:
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=60)
    return f"data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}"
