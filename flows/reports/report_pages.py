"""Evaluation reports as Markdown pages, and as artifacts of a flow run in Prefect."""

import base64
import io
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext

from dreamshard.files.text import markdown_table
from flows.reports import report_tables
from flows.reports.plots import plots, rows_of_shown_task
from flows.reports.report_tables import Table
from storage.run_records.checkpoints import Metrics
from storage.run_records.report_store import EvaluationReport

_ABOUT = {
    "dreamshard": "Algorithm `dreamshard`: this project's networks and search. It lowers the predicted cost of a step, which "
    "is that of the slowest device.",
    "paper": "Algorithm `paper`: DreamShard as published, whose policy places without a search. It is trained to lower the "
    "predicted cost of a step, which is that of the slowest device.",
    "autoshard": "Algorithm `autoshard`: AutoShard as published. It balances predicted compute (the least over the largest "
    "of a device) and knows nothing of all-to-alls, so compare compute below as well as the cost of a step. In the "
    "learning curve, the reward is that balance, the errors are of the devices' compute, and the measured cost is the mean "
    "of placements of whole tasks and of random sets of their tables.",
}
"""What a training's algorithm is and optimises, by the candidate's name."""


def evaluation_page(report: EvaluationReport, history: Sequence[Metrics], reason: str, links: Mapping[str, str]) -> str:
    """The evaluation of a training: outcome, table, one placement in figures, learning curve, pictures, links."""
    curve = [
        {"iteration": step + 1} | {name: f"{value:.4g}" for name, value in entry.items()}
        for step, entry in enumerate(history)
    ]
    names = list(dict.fromkeys(name for entry in curve for name in entry))
    parts = [
        "# dreamshard",
        f"**{reason}**",
        *filter(None, [_ABOUT.get(report.candidate)]),
        f"## {report_tables.title(report)}",
        markdown_table(report_tables.evaluation_table(report)),
        *filter(None, [report_tables.learnt_sentence(report)]),
        *([f"Note: {report.caveat}."] if report.caveat else []),
        "## One placement, device by device (measured ms)",
        markdown_table(_device_table(report)),
        prediction_sentence(report),
        "## Learning curve",
        markdown_table([{name: entry.get(name, "-") for name in names} for entry in curve]),
        "## Pictures",
        *(f"![{name}]({_data_uri(figure)})" for name, figure in plots(report, history).items()),
        "## Where",
        *(f"- {name}: {link}" for name, link in links.items()),
    ]
    return "\n\n".join(parts)


def comparison_page(report: EvaluationReport) -> str:
    """A comparison of versions: its table, every pair, every task."""
    parts = [
        f"# {', '.join(report.gains)}",
        f"{report_tables.title(report)}; {heldout_sentence(report)}.",
        markdown_table(report_tables.comparison_table(report)),
        *filter(None, [report_tables.learnt_sentence(report)]),
        *([f"Note: {report.caveat}."] if report.caveat else []),
        "Prediction error and rank correlation are those of a version's cost network on all placements measured here; "
        "predictions of two versions are not of one network and are not set side by side.",
        f"## Every pair: measured cost saved (95 % interval, {_paired_by(report)})",
        markdown_table(report_tables.pairs_table(report)),
        "## Every task, measured ms",
        markdown_table(report_tables.costs_by_task(report)),
    ]
    return "\n\n".join(parts)


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


def publish_evaluation(report: EvaluationReport, page: str, reason: str) -> None:
    """Show the evaluation table and its page as artifacts of this flow run; does nothing outside of one."""
    if FlowRunContext.get() is not None:
        table = report_tables.evaluation_table(report)
        create_table_artifact(table, key="dreamshard-evaluation", description=reason)
        create_markdown_artifact(page, key="dreamshard-report", description=reason)


def publish_comparison(report: EvaluationReport) -> None:
    """Show the comparison's page as an artifact of this flow run; does nothing outside of one."""
    if FlowRunContext.get() is not None:
        page, sentence = comparison_page(report), heldout_sentence(report)
        create_markdown_artifact(page, key="dreamshard-comparison", description=sentence)


def _paired_by(report: EvaluationReport) -> str:
    return "paired by task" if report.model is None else "paired by round"


def _device_table(report: EvaluationReport) -> Table:
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
