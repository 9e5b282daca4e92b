"""`dreamshard place`: places the tables listed in a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.cli import terminal
from flows.cli.command_options import BatchOption, HardwareOption, HomeOption, enter
from flows.cli.placers import choose

if TYPE_CHECKING:
    from dreamshard.plan import Plan
    from dreamshard.tables import Tables
    from dreamshard.tasks import PlacementTask
    from dreamshard.testbeds.accelerators.specs import AcceleratorSpec
    from storage.store import Store

OTHER_SETTING = 3
"""Exit code of `place` where the plan's costs are of something else than what it is for."""
_TELLING_GAP = 0.25  # to the lower bound, above which the bound says nothing about the placement


def place(
    tables: Annotated[
        Path,
        typer.Argument(help="CSV or Parquet (name, rows, dim, pooling_factor, bin_0..16), or TorchRec-style JSON."),
    ],
    devices: Annotated[int, typer.Option("--devices", min=1, help="Number of devices.")],
    memory_gb: Annotated[
        float | None,
        typer.Option(
            "--memory-gb",
            min=0.001,
            help="Room for tables on each device, GiB; seven eighths of --hardware's if omitted.",
        ),
    ] = None,
    hardware: HardwareOption = None,
    placer: Annotated[
        str | None,
        typer.Option(
            "--placer",
            help="champion, challenger, previous, a version, prior, cost_greedy, a rule of thumb, or a rival.",
            show_default="the champion, or the best for --hardware",
        ),
    ] = None,
    budget_ms: Annotated[float | None, typer.Option("--budget-ms", min=0, help="Time limit of the search.")] = None,
    current: Annotated[Path | None, typer.Option("--current", help="PLAN.json in use; shows what moves.")] = None,
    form: Annotated[Literal["json", "csv", "torchrec"], typer.Option("--format", help="Format of the plan.")] = "json",
    out: Annotated[Path | None, typer.Option("--out", help="File for the plan; stdout if omitted.")] = None,
    precision: Annotated[Literal["fp32", "fp16"], typer.Option("--precision", help="Type of the weights.")] = "fp32",
    optimizer: Annotated[
        Literal["sgd", "rowwise_adagrad"], typer.Option("--optimizer", help="Optimizer, whose state takes room.")
    ] = "sgd",
    batch_size: BatchOption = None,
    devices_per_host: Annotated[
        int | None, typer.Option("--devices-per-host", min=1, help="Devices on one host; the hardware's if omitted.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 where costs are of another setting than the plan's.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Place TABLES: write the plan to stdout or a file, and its figures to stderr.

    Exits with 3, the plan written, if its costs are of other hardware than --hardware; with --strict also if they are of
    another number of devices or of devices per host, precision, optimizer or batch size.
    """
    store = enter(home)
    _check(out)
    from dreamshard.files import atomic
    from dreamshard.plan import make_plan, read_plan, with_origin
    from dreamshard.search import DreamShardPlacer, RooflinePlacer
    from dreamshard.tasks import PlacementTask
    from dreamshard.testbeds.accelerators.hardware_file import hardware as hardware_of

    spec = hardware_of(hardware) if hardware else None
    task = PlacementTask(
        read_listed(store, tables),
        devices,
        _memory_bytes(memory_gb, spec),
        precision=precision,
        optimizer=optimizer,
        name=tables.name,
        devices_per_host=devices_per_host,
        batch_size=batch_size,
    )
    in_use = read_plan(current) if current else None
    chosen = choose(store, placer, task, spec, hardware or "")
    if chosen.why:
        terminal.note(chosen.why)
    if isinstance(chosen.placer, DreamShardPlacer | RooflinePlacer):
        placement = chosen.placer.place(task, budget_ms)
    else:
        placement = chosen.placer.place(task)
    oracle = chosen.predictor
    plan = make_plan(task, placement, chosen.name, oracle.predict(task, placement) if oracle else None)
    if oracle is not None:
        knows = isinstance(oracle, DreamShardPlacer) and oracle.cost_network.knows_topology(task)
        plan = with_origin(
            plan, task, chosen.costs_of, hardware=spec.name if spec else None, called=hardware, knows_topology=knows
        )
    if in_use is not None:
        _show_moves(task, in_use, plan)
    text = plan_text(plan, form, task)
    if out is None:
        typer.echo(text, nl=not text.endswith("\n"))
    else:
        atomic.write(out, text)
        terminal.note(f"wrote {out}")
    if oracle is not None:
        bound_ms = oracle.lower_bound_ms(task, placement) if isinstance(oracle, DreamShardPlacer) else None
        _show_prediction(task, plan, bound_ms, is_for_named=spec is not None)
    if "hardware" in plan.differs_in or (strict and plan.differs_in):
        raise typer.Exit(OTHER_SETTING)


def _memory_bytes(memory_gb: float | None, spec: "AcceleratorSpec | None") -> int:
    """Room for tables on each device: as given, else most of what the hardware has."""
    from dreamshard.formatting import gib
    from dreamshard.testbeds.capacity import TABLES_SHARE

    if memory_gb is not None:
        return round(memory_gb * 2**30)
    if spec is None:
        raise typer.BadParameter("give the room for tables on each device, or --hardware", param_hint="--memory-gb")
    memory_bytes = round(TABLES_SHARE * spec.memory_bytes)
    terminal.note(
        f"{gib(memory_bytes)} for tables on each device, {TABLES_SHARE:.1%} of what {spec.name} has (--memory-gb)"
    )
    return memory_bytes


def _show_prediction(task: "PlacementTask", plan: "Plan", bound_ms: float | None, *, is_for_named: bool) -> None:
    split = len(plan.shards) > len(task.tables)
    shards = f", split by columns into {len(plan.shards)} shards" if split else ""
    predicted = f"{plan.placer}: predicted {plan.overall_ms:.3f} ms"
    terminal.note(f"{predicted} for {len(task.tables)} tables on {plan.num_devices} devices{shards}")
    if plan.costs_of is not None:
        other = "" if is_for_named else "; if the plan is for other hardware, name it with --hardware"
        terminal.note(f"costs of {plan.costs_of}{other}")
    if plan.warning:
        terminal.warn(plan.warning)
    if bound_ms is not None and plan.overall_ms is not None and plan.overall_ms < (1 + _TELLING_GAP) * bound_ms:
        bound = f"lower bound of any placement of these {'shards' if split else 'tables'}: {bound_ms:.3f} ms"
        terminal.note(f"{bound}; {plan.overall_ms / bound_ms - 1:.0%} above it")


def plan_text(plan: "Plan", form: str, task: "PlacementTask") -> str:
    """The plan in the given format."""
    if form == "json":
        return plan.to_json()
    if form == "csv":
        return plan.to_csv()
    try:
        from dreamshard.torchrec import sharding_plan, to_json
    except ImportError as error:
        raise ValueError(
            f"torchrec cannot be imported ({error}), so there is no ShardingPlan to write; install it with "
            "`pip install --no-deps torchrec==1.8.0`, or use --format json"
        ) from error
    rows = dict(zip(task.tables.names, task.tables.rows.tolist(), strict=True))
    return to_json(sharding_plan(plan, rows))


def read_listed(store: "Store", path: Path) -> "Tables":
    """The tables of a file; a note says what was filled in."""
    from dreamshard.workloads import read_tables

    versions = store.lake.dataset_versions()
    listed = read_tables(path, store.lake.read_dataset(versions[-1]) if versions else None)
    if listed.defaulted:
        source = "taken from the mean of the tables ingested last"
        if not versions:
            source = "no tables have been ingested into this home, so lookups are filled in by a Zipf law"
            source += " and one per sample" if "pooling_factor" in listed.defaulted else ""
        terminal.note(f"{path} lacks {', '.join(listed.defaulted)}: {source}")
    return listed.tables


def _show_moves(task: "PlacementTask", before: "Plan", after: "Plan") -> None:
    from dreamshard.formatting import gib
    from dreamshard.placement import moves

    in_use = {shard.table for shard in before.shards}
    known = [t for t, name in enumerate(task.tables.names) if name in in_use]
    if not known:
        raise ValueError("the plan in use places none of these tables, so nothing moves; give the plan of this model")
    shared = task.tables.select(known)
    moved = moves(shared, task.table_bytes[known], before.placement(shared), after.placement(shared))
    total = sum(move.memory_bytes for move in moved)
    tables, dims = {move.table for move in moved}, dict(zip(shared.names, shared.dim.tolist(), strict=True))
    ranges = f" in {len(moved)} ranges of columns" if len(moved) > len(tables) else ""
    new = f"; {len(task.tables) - len(known)} are new" if len(known) < len(task.tables) else ""
    terminal.note(f"{len(tables)} of {len(known)} tables move{ranges}, {gib(total)} in all{new}{':' if moved else ''}")
    for move in moved:
        whole = (move.start, move.end) == (0, dims[move.table])
        what = move.table if whole else f"{move.table}, columns {move.start} to {move.end}"
        terminal.note(f"  {what}: device {move.source} -> {move.target}, {move.memory_bytes / 2**20:.4g} MiB")


def _check(out: Path | None) -> None:
    """Check, before placing, that the plan can be written."""
    if out is None:
        return
    if not out.absolute().parent.is_dir():
        raise ValueError(
            f"the folder {out.parent} does not exist, so the plan cannot be written to {out}; make it, or give --out "
            "another path"
        )
    if out.is_dir():
        raise ValueError(f"{out} is a folder, so the plan cannot be written to it; give --out the path of a file")
