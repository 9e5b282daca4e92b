"""The command `sweep`: every placer at many sizes, on tables that none has seen."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli import outcomes, terminal
from flows.cli.command_options import HomeOption, JsonOption, enter, with_options
from flows.forms.options import SweepOptions

_BEGIN, _END = "<!-- sweep -->", "<!-- /sweep -->"


@with_options
def sweep(
    options: SweepOptions,
    write: Annotated[
        Path | None,
        typer.Option("--write", help="Markdown file in which to replace the section between sweep comments."),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare every placer at many sizes, dims and seeds; an interrupted sweep continues where it ended."""
    if write is not None:  # fail before hours of work
        if not write.is_file():
            raise ValueError(f"there is no file {write}, so its section of figures cannot be replaced; check the path")
        replaced_section(write.read_text(encoding="utf-8"), "", write)
    enter(home, servers=True)
    from flows.cli.in_process import run_flow
    from flows.reports import sweep_page
    from flows.sweep import asked_for, sweep
    from flows.tasks.sweeping import done_results
    from storage.store import open_store

    designed, _ = asked_for(options)  # fail before the server starts
    outcome = run_flow(sweep, options, quiet=as_json)
    store = open_store()
    outcome["page"] = outcomes.browsable(store.settings, outcome["page"])
    if write is not None:
        results = done_results(store, designed)
        markdown = sweep_page.markdown_of(designed, results, sweep_page.write_pictures(results, write))
        write.write_text(replaced_section(write.read_text(encoding="utf-8"), markdown, write), encoding="utf-8")
        terminal.note(f"wrote the figures to {write}, and plots to {write.parent / 'docs' / 'pictures'}")
    if as_json:
        terminal.print_json(outcome)
        return
    terminal.say(outcome.pop("markdown"))
    outcomes.show_fields(outcome)


def replaced_section(text: str, markdown: str, file: Path) -> str:
    """`text` with `markdown` between its comments `<!-- sweep -->` and `<!-- /sweep -->`.

    Raises:
        ValueError: the comments are missing.
    """
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(
            f"{file} has no comments {_BEGIN} and {_END}, so there is no place for the figures; add both as lines"
        )
    return f"{before}{_BEGIN}\n\n{markdown}\n\n{_END}{after}"
