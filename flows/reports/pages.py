"""Pages of Markdown and HTML, and artifacts of a flow run in Prefect."""

from collections.abc import Mapping, Sequence
from typing import Any

from markdown_it import MarkdownIt
from prefect.artifacts import create_markdown_artifact
from prefect.context import FlowRunContext

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { border: 1px solid #ccc; padding: .25em .6em; text-align: left; }
th { background: #f3f3f3; }
"""


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same columns as a Markdown table; empty if there are no rows."""
    if not rows:
        return ""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([str(row[column]) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def html_page(markdown: str) -> str:
    """A page as one HTML file; HTML in `markdown` is shown as text."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    return f'<!doctype html><meta charset="utf-8"><title>dreamshard</title><style>{_STYLE}</style>\n{body}'


def publish(markdown: str, key: str, sentence: str) -> None:
    """Show a page of Markdown as an artifact of this flow run; does nothing outside of one."""
    if FlowRunContext.get() is not None:
        create_markdown_artifact(markdown, key=key, description=sentence)
