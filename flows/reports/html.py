"""Markdown as one HTML file with its pictures inside, for MLflow and browsers."""

from markdown_it import MarkdownIt

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { border: 1px solid #ccc; padding: .25em .6em; text-align: left; }
th { background: #f3f3f3; }
img { max-width: 100%; }
"""


def html_page(markdown: str, title: str) -> str:
    """Render the page; HTML in `markdown` is shown as text."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    return f'<!doctype html><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>\n{body}'
