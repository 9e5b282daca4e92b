"""`dreamshard place`: places the tables of a list or a model."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from dreamshard.files import atomic
from dreamshard.placement import Placement
from dreamshard.workloads.table_list import ModelTable
from flows.cli import terminal
from flows.cli.command_options import HomeOption, enter, with_options
from flows.forms.options import PlaceOptions
from flows.placing import models, request
from flows.placing.moving import transition_lines
from flows.placing.pages import prediction_sentence, unmeasured_sentence, view_of
from flows.runtime.sources import torchrec_bridge

OTHER_SETTING = 3
"""Exit code of `place` if the plan's costs are of something else than what it is for."""

FormatOption = Annotated[Literal["json", "csv", "torchrec"], typer.Option("--format", help="Format of the plan.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="File for the plan; stdout if omitted.")]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", help="File for a page that shows the plan: devices, tables and what moves.")
]
ModulePathOption = Annotated[
    str | None,
    typer.Option(
        "--module-path",
        help="Of the collection within the model that is given to DistributedModelParallel, for --format torchrec; '' where "
        "it is the model itself.",
    ),
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
    module_path: ModulePathOption = None,
    device_type: DeviceTypeOption = "cuda",
    strict: StrictOption = False,
    home: HomeOption = None,
) -> None:
    """Place TABLES: write the plan to stdout or a file, and its figures to stderr.

    Exits with 3, the plan written, if its costs are of other hardware than --hardware; with --strict also if they are of
    another number of devices or of devices per host, precision, optimizer or batch size.
    """
    if form == "torchrec" and device_type == "cuda" and not (options.devices_per_host or options.hardware):
        raise typer.BadParameter(
            "a plan for TorchRec names the GPU of each rank on its host; give the ranks per host, or --hardware",
            param_hint="--devices-per-host",
        )
    for path, what, option in ((out, "plan", "--out"), (html, "page", "--html")):
        if path is not None:
            atomic.check_output(path, what, option)
    store = enter(home, reads_only=True)
    checked = request.check(store, options, terminal.note, ranks=device_type if form == "torchrec" else None)
    details = _located(checked, module_path) if form == "torchrec" else ()
    placed = request.place(store, checked, terminal.note)
    plan = placed.plan
    if checked.in_use is not None and placed.way is not None:
        for line in transition_lines(
            checked.task, checked.in_use, placed.way, " (--steps-until-next, --move-gb-per-s)"
        ):
            terminal.note(line)
    if form == "torchrec":
        text = _torchrec_text(checked, placed.placement, details, device_type)
    else:
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


def _located(checked: request.CheckedRequest, module_path: str | None) -> tuple[ModelTable, ...]:
    """The tables as a plan for TorchRec names them, before anything is placed.

    Raises:
        ValueError: torchrec is not installed, or does not shard the model's modules.
        BadParameter: the tables' module is not known, or given although the model says it.
    """
    bridge = torchrec_bridge()
    model, left = models.located(checked.model, Path(checked.options.tables), module_path)
    if left is not None:
        raise typer.BadParameter("the model says where its tables are; leave it out", param_hint="--module-path")
    if model is None:
        raise typer.BadParameter(
            "a list does not say where the model has its tables; give the path of their collection within the model, e.g. "
            "sparse_arch.ebc ('' if it is the model itself), or place model.py:make_model",
            param_hint="--module-path",
        )
    bridge.refuse_plain(model.details)
    task = checked.task
    return tuple(  # a list's types of weights are those of the task
        table if table.collection else replace(table, precision=task.precision_of.get(name, task.precision))
        for name, table in model.by_name.items()
    )


def _torchrec_text(
    checked: request.CheckedRequest, placement: Placement, tables: tuple[ModelTable, ...], device_type: str
) -> str:
    """The plan file that `dreamshard.torchrec.load_plan` reads."""
    bridge, spec = torchrec_bridge(), checked.spec
    per_host = checked.task.devices_per_host or (spec.devices_per_node if spec else None)
    per_host = min(per_host, placement.num_devices) if per_host else placement.devices_per_host
    text: str = bridge.to_json(
        bridge.sharding_plan(placement, tables, device_type=device_type, ranks_per_host=per_host),
        tables,
        world_size=placement.num_devices,
        ranks_per_host=per_host,
        device_type=device_type,
    )
    return text
