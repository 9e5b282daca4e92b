"""`dreamshard place`: places the tables listed in a file."""

import typer

from flows.cli import place_options as options
from flows.cli import terminal
from flows.cli.command_options import BatchOption, HardwareOption, HomeOption, enter
from flows.cli.explanation import ExplainOption, show_explanation
from flows.cli.plan_in_use import (
    CurrentOption,
    CurrentTablesOption,
    CurveOption,
    MoveRateOption,
    StepsOption,
    check_curve,
    show_transition,
    write_curve,
)
from flows.cli.plan_output import check_page, check_writable, plan_text, show_prediction, write_page
from flows.cli.torchrec_plan import DeviceTypeOption, ModulePathOption, check_ranks_per_host, torchrec_target

OTHER_SETTING = 3
"""Exit code of `place` where the plan's costs are of something else than what it is for."""


def place(
    tables: options.TablesArgument,
    devices: options.DevicesOption,
    memory_gb: options.MemoryOption = None,
    hardware: HardwareOption = None,
    placer: options.PlacerOption = None,
    budget_ms: options.BudgetOption = None,
    constraints: options.ConstraintsOption = None,
    sharding: options.ShardingOption = None,
    reserve_gb: options.ReserveOption = None,
    cache: options.CacheOption = False,
    current: CurrentOption = None,
    current_tables: CurrentTablesOption = None,
    steps_until_next: StepsOption = 100_000,
    move_gb_per_s: MoveRateOption = 10,
    curve: CurveOption = None,
    explain: ExplainOption = False,
    form: options.FormatOption = "json",
    out: options.OutOption = None,
    html: options.HtmlOption = None,
    precision: options.PrecisionOption = None,
    optimizer: options.OptimizerOption = None,
    batch_size: BatchOption = None,
    devices_per_host: options.PerHostOption = None,
    module_path: ModulePathOption = None,
    device_type: DeviceTypeOption = "cuda",
    strict: options.StrictOption = False,
    home: HomeOption = None,
) -> None:
    """Place TABLES: write the plan to stdout or a file, and its figures to stderr.

    Exits with 3, the plan written, if its costs are of other hardware than --hardware; with --strict also if they are of
    another number of devices or of devices per host, precision, optimizer or batch size.
    """
    options.check_tables(tables)
    if form == "torchrec":
        check_ranks_per_host(device_type, devices_per_host, hardware)
    store = enter(home, reads_only=True)
    check_writable(out)
    check_curve(curve, current)
    check_page(html)
    options.check_room(memory_gb, hardware)
    from dreamshard.files import atomic
    from flows.placing import request as placing
    from flows.placing.model_tables import located

    checked = placing.check(
        store,
        placing.PlaceRequest(
            tables=tables,
            num_devices=devices,
            memory_gb=memory_gb,
            hardware=hardware,
            placer=placer,
            budget_ms=budget_ms,
            constraints=constraints,
            sharding=sharding,
            reserve_gb=reserve_gb,
            cache=cache,
            current=current,
            current_tables=current_tables,
            steps_until_next=steps_until_next,
            move_gb_per_s=move_gb_per_s,
            precision=precision,
            optimizer=optimizer,
            batch_size=batch_size,
            devices_per_host=devices_per_host,
            ranks=device_type if form == "torchrec" else None,
        ),
        terminal.note,
    )
    task, spec, target = checked.task, checked.spec, None
    if form == "torchrec":
        model, module_path = located(checked.model, tables, module_path)
        target = torchrec_target(task, model=model, module_path=module_path, device_type=device_type, spec=spec)
    placed = placing.place(store, checked, terminal.note)
    plan = placed.plan
    if checked.in_use is not None and placed.way is not None:
        show_transition(task, checked.in_use, placed.way)
        if curve is not None:
            write_curve(curve, placed.way)
    text = plan_text(plan, placed.placement, form, target)
    if out is None:
        typer.echo(text, nl=not text.endswith("\n"))
    else:
        atomic.write_output(out, text)
        terminal.note(f"wrote {out}")
    if html is not None:
        write_page(html, checked, placed)
    if placed.predictor is not None:
        show_prediction(task, placed.placement, plan, placed.predictor, is_for_named=spec is not None)
        if explain:
            show_explanation(task, placed.placement, placed.predictor)
    if "hardware" in plan.differs_in or (strict and plan.differs_in):
        raise typer.Exit(OTHER_SETTING)
