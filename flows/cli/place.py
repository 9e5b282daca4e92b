"""`dreamshard place`: places the tables listed in a file."""

from dataclasses import replace

import typer

from flows.cli import place_options as options
from flows.cli import terminal
from flows.cli.command_options import BatchOption, HardwareOption, HomeOption, enter
from flows.cli.explanation import ExplainOption, show_explanation
from flows.cli.placers import choose, is_without_costs
from flows.cli.plan_in_use import (
    CurrentOption,
    CurrentTablesOption,
    CurveOption,
    MoveRateOption,
    StepsOption,
    check_curve,
    read_in_use,
    show_transition,
    transition,
    write_curve,
)
from flows.cli.plan_output import check_writable, plan_text, show_prediction
from flows.cli.torchrec_plan import DeviceTypeOption, ModulePathOption, torchrec_target

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
    store = enter(home)
    check_writable(out)
    check_curve(curve, current)
    from dreamshard.files import atomic
    from dreamshard.plan import make_plan, with_origin
    from dreamshard.search import DreamShardPlacer
    from dreamshard.testbeds.accelerators.hardware_file import hardware as hardware_of
    from flows.cli.model_tables import located, tables_from, task_of

    spec = hardware_of(hardware) if hardware else None
    listed, model = tables_from(store, tables)
    default = "columns" if is_without_costs(placer) else "auto"
    task = task_of(
        listed,
        model,
        devices,
        options.memory_bytes_of(memory_gb, spec),
        precision,
        optimizer,
        name=tables.name,
        devices_per_host=devices_per_host,
        batch_size=batch_size,
        constraints=options.constraints_of(
            constraints, listed.names, devices, sharding=sharding or default, reserve_gb=reserve_gb, cache=cache
        ),
    )
    target = None
    if form == "torchrec":
        model, module_path = located(model, tables, module_path)
        target = torchrec_target(task, model=model, module_path=module_path, device_type=device_type, spec=spec)
    rows_before = None
    if current_tables is not None:
        earlier, _ = tables_from(store, current_tables)
        rows_before = dict(zip(earlier.names, earlier.rows.tolist(), strict=True))
    in_use = read_in_use(current, task, rows_before) if current else None
    chosen = choose(store, placer, task, spec, hardware or "")
    if chosen.why:
        terminal.note(chosen.why)
    placement = chosen.place(task, budget_ms).on_hosts_of(devices_per_host or (spec.devices_per_node if spec else None))
    oracle = chosen.predictor
    way = None
    if in_use is not None:
        way = transition(task, in_use, placement, oracle, steps_until_next, move_gb_per_s)
        placement = way.placement
    plan = make_plan(task, placement, chosen.name, oracle.predict_sharded(task, placement) if oracle else None)
    if oracle is not None:
        knows = isinstance(oracle, DreamShardPlacer) and oracle.cost_network.knows_topology(task)
        plan = with_origin(
            plan, task, chosen.costs_of, hardware=spec.name if spec else None, called=hardware, knows_topology=knows
        )
    if in_use is not None and way is not None:
        plan = replace(plan, moves=tuple(step.to_json() for step in way.schedule.steps))
        show_transition(task, in_use, way)
        if curve is not None:
            write_curve(curve, way)
    text = plan_text(plan, form, target)
    if out is None:
        typer.echo(text, nl=not text.endswith("\n"))
    else:
        atomic.write(out, text)
        terminal.note(f"wrote {out}")
    if oracle is not None:
        show_prediction(task, placement, plan, oracle, is_for_named=spec is not None)
        if explain:
            show_explanation(task, placement, oracle)
    if "hardware" in plan.differs_in or (strict and plan.differs_in):
        raise typer.Exit(OTHER_SETTING)
