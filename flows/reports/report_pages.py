"""Evaluation reports as pages of Markdown and HTML, and as artifacts of a flow run in Prefect."""

from collections.abc import Mapping

from markdown_it import MarkdownIt
from prefect.artifacts import create_markdown_artifact
from prefect.context import FlowRunContext

from flows.reports import report_tables
from flows.reports.report_tables import markdown_table
from storage.run_records.report_store import EvaluationReport

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { border: 1px solid #ccc; padding: .25em .6em; text-align: left; }
th { background: #f3f3f3; }
"""


def page(report: EvaluationReport, outcome: str, links: Mapping[str, str]) -> str:
    """A report as Markdown: its outcome, tables and links; Prefect and MLflow both show it.

    A comparison of versions also has the gain of every pair.
    """
    parts = [
        f"**{outcome}**",
        f"## {report_tables.title(report)}",
        markdown_table(report_tables.placers_table(report)),
        report.caveat and f"Note: {report.caveat}.",
        prediction_sentence(report),
    ]
    if report.training is None:
        by = "task" if report.model is None else "round"
        parts += [f"## Every pair: measured cost saved (95 % interval, paired by {by})"]
        parts += [markdown_table(report_tables.pairs_table(report))]
    parts += ["## Where", *(_link(name, address) for name, address in links.items())] if links else []
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
    """How well the candidate, or each compared version, predicts placements that it was not trained on."""
    if report.training is None:
        return "Prediction errors are of a version's own cost network on all placements measured here."
    if not report.is_predicted:
        return f"No cost of a step is predicted: {report.candidate} predicts compute only."
    error = report.placer(report.candidate).predicted_mape
    if error is None:
        return "No placement measured here was held out, so the prediction error is not known."
    machine = report_tables.steadiness_words(report.steadiness, report.level)
    also = f"; {machine}" if machine else ""
    return f"Prediction error: {error:.1%} on {report.heldout_placements} placements that were not trained on{also}."


def html_page(markdown: str) -> str:
    """A page as one HTML file; HTML in `markdown` is shown as text."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    return f'<!doctype html><meta charset="utf-8"><title>dreamshard</title><style>{_STYLE}</style>\n{body}'


def publish(markdown: str, key: str, sentence: str) -> None:
    """Show a page of Markdown as an artifact of this flow run; does nothing outside of one."""
    if FlowRunContext.get() is not None:
        create_markdown_artifact(markdown, key=key, description=sentence)


def _link(name: str, address: str) -> str:
    if address.startswith("#"):  # of MLflow's own pages
        return f"- [{name}]({address})"
    return f"- {name}: {f'<{address}>' if address.startswith('http') else address}"
