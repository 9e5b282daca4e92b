"""`dreamshard place`: places the tables of a list or a model."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from dreamshard.files import atomic
from flows.cli import terminal
from flows.cli.command_options import HomeOption, enter, with_options
from flows.forms.options import PlaceOptions
from flows.placing import request
from flows.placing.moving import transition_lines
from flows.placing.pages import prediction_sentence, unmeasured_sentence, view_of

OTHER_SETTING = 3
"""Exit code of `place` if the plan's costs are of something else than what it is for."""

FormatOption = Annotated[
    Literal["json", "csv", "torchrec"],
    typer.Option("--format", help="Of the plan; torchrec: JSON, of ways to shard that TorchRec's sharders run."),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="File for the plan; stdout if omitted.")]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", help="File for a page that shows the plan: devices, tables and what moves.")
]
DeviceTypeOption = Annotated[
    Literal["cuda", "cpu"], typer.Option("--device-type", help="Of the ranks, for --format torchrec; cuda or cpu.")
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit with 3 if costs are of another setting than the plan's.")
]


@with_options
def place(
    options: PlaceOptions,
    form: FormatOption = "json",
    out: OutOption = None,
    html: HtmlOption = None,
    device_type: DeviceTypeOption = "cuda",
    strict: StrictOption = False,
    home: HomeOption = None,
) -> None:
    """Place TABLES: write the plan to stdout or a file, and its figures to stderr.

    Exits with 3, the plan written, if its costs are of other hardware than --hardware; with --strict also if they are of
    another number of devices or of devices per host, precision, optimizer or batch size.
    """
    for path, what, option in ((out, "plan", "--out"), (html, "page", "--html")):
        if path is not None:
            atomic.check_output(path, what, option)
    store = enter(home, reads_only=True)
    checked = request.check(store, options, terminal.note, ranks=device_type if form == "torchrec" else None)
    placed = request.place(store, checked, terminal.note)
    plan = placed.plan
    if checked.in_use is not None and placed.way is not None:
        for line in transition_lines(
            checked.task, checked.in_use, placed.way, " (--steps-until-next, --move-gb-per-s)"
        ):
            terminal.note(line)
    text = plan.to_csv() if form == "csv" else plan.to_json()
    if out is None:
        typer.echo(text, nl=not text.endswith("\n"))
    else:
        atomic.write_output(out, text)
        terminal.note(f"wrote {out}")
    if html is not None:
        from flows.reports.plan_view.page import plan_html  # Bokeh takes a second to import

        atomic.write_output(html, plan_html(view_of(checked, placed)))
        terminal.note(f"wrote {html}; open it in a browser")
    if placed.predictor is not None:
        _show_prediction(checked, placed)
    if "hardware" in plan.differs_in or (strict and plan.differs_in):
        raise typer.Exit(OTHER_SETTING)


def _show_prediction(checked: request.CheckedRequest, placed: request.Placed) -> None:
    """Say what the plan costs, and what that is of."""
    plan = placed.plan
    terminal.note(prediction_sentence(plan, placed.placement))
    if sentence := unmeasured_sentence(plan):
        terminal.note(sentence)
    if plan.costs_of is not None:
        other = "" if checked.spec else "; if the plan is for other hardware, name it with --hardware"
        batch = "" if checked.task.batch_size else "; for another number of samples per step give --batch-size"
        terminal.note(f"costs of {plan.costs_of}{batch}{other}")
    if plan.warning:
        terminal.warn(plan.warning)
