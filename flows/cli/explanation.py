"""`dreamshard explain`: why a plan costs what it costs, for people and for programs."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli import place_options as options
from flows.cli import terminal
from flows.cli.command_options import BatchOption, HardwareOption, HomeOption, JsonOption, enter
from flows.placing.placers import choose

if TYPE_CHECKING:
    from dreamshard.explain import Alternative, DeviceReason, Explanation, TableReason
    from dreamshard.placement import Placement
    from dreamshard.tasks import PlacementTask
    from flows.placing.placers import Predictor

ExplainOption = Annotated[
    bool, typer.Option("--explain", help="Also say what makes each device slow, and what tables would cost elsewhere.")
]
_TOP = 3  # tables named per device


def explain(
    plan: Annotated[Path, typer.Argument(help="PLAN.json of dreamshard, or TorchRec's own plan as JSON.")],
    tables: options.TablesArgument,
    memory_gb: options.MemoryOption = None,
    hardware: HardwareOption = None,
    placer: options.PlacerOption = None,
    constraints: options.ConstraintsOption = None,
    sharding: options.ShardingOption = "auto",
    reserve_gb: options.ReserveOption = None,
    cache: options.CacheOption = False,
    precision: options.PrecisionOption = None,
    optimizer: options.OptimizerOption = None,
    batch_size: BatchOption = None,
    devices_per_host: options.PerHostOption = None,
    shown: Annotated[int, typer.Option("--shown", min=1, help="Devices and tables to show, the slowest first.")] = 16,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain PLAN for TABLES: what makes each device slow, and what each table would cost elsewhere."""
    options.check_tables(tables)
    store = enter(home, reads_only=True)
    options.check_room(memory_gb, hardware)
    from dreamshard.explain import explain as explained
    from dreamshard.hardware.accelerator import hardware as hardware_of
    from flows.placing.given_limits import constraints_of, memory_bytes_of
    from flows.placing.model_tables import read_model, task_of
    from flows.placing.plan_in_use import read_any_plan

    spec = hardware_of(hardware) if hardware else None
    model = read_model(store, tables, terminal.note)
    listed = model.tables
    found, _ = read_any_plan(plan, listed, devices_per_host)
    task = task_of(
        model,
        found.num_devices,
        memory_bytes_of(memory_gb, spec, terminal.note),
        precision,
        optimizer,
        name=tables.name,
        devices_per_host=devices_per_host or found.devices_per_host,
        batch_size=batch_size,
        constraints=constraints_of(
            constraints,
            listed.names,
            found.num_devices,
            sharding=sharding or "auto",
            reserve_gb=reserve_gb,
            cache=cache,
        ),
        note=terminal.note,
    )
    chosen = choose(store, placer, task, spec, hardware or "", note=terminal.note)
    if chosen.predictor is None:
        raise ValueError("no cost is predicted, so nothing can be explained; name --hardware, or train a placer")
    if chosen.predicted_by is not None:
        terminal.note(f"{chosen.name} predicts no cost of a step; these are predicted by {chosen.predicted_by}")
    if chosen.caveat:
        terminal.warn(chosen.caveat)
    placement = found.placement(listed).on_hosts_of(task.devices_per_host or (spec.devices_per_node if spec else None))
    explanation = explained(task, placement, chosen.predictor)
    if as_json:
        terminal.print_json(asdict(explanation))
        return
    for line in explanation_lines(explanation, shown):
        terminal.say(line)


def show_explanation(task: "PlacementTask", placement: "Placement", predictor: "Predictor") -> None:
    """The same of a placement that was just made, on stderr."""
    from dreamshard.explain import explain as explained

    for line in explanation_lines(explained(task, placement, predictor)):
        terminal.note(line)


def explanation_lines(explanation: "Explanation", shown: int = 16) -> Iterator[str]:
    """What makes the slowest devices slow, and what the tables that cost most would cost elsewhere."""
    devices = sorted(explanation.devices, key=lambda reason: -reason.total_ms)
    yield f"devices, the slowest first ({min(shown, len(devices))} of {len(devices)}), in ms:"
    names = ("device", "total", "lookup", "exchange", "exchange back", "update", "GiB", "tables that cost most")
    yield from _columns([names, *(_device_cells(reason) for reason in devices[:shown])])
    yield ""
    tables = explanation.tables
    yield (
        f"tables, by what their device would save without them ({min(shown, len(tables))} of {len(tables)}); elsewhere, the "
        f"step of {explanation.overall_ms:.3f} ms would take:"
    )
    heads = ("table", "ms", "sharded", "where", "next best place", "next best way to shard")
    yield from _columns([heads, *(_table_cells(reason) for reason in tables[:shown])])


def _device_cells(reason: "DeviceReason") -> tuple[str, ...]:
    phases = [f"{ms:.3f}" for ms in reason.phases_ms.values()]
    top = ", ".join(f"{each.table} {each.ms:.3f}" for each in reason.contributions[:_TOP])
    more = len(reason.contributions) - _TOP
    memory = f"{reason.memory_bytes / 2**30:.3g}"
    return (
        str(reason.device),
        f"{reason.total_ms:.3f}",
        *phases,
        memory,
        f"{top}, and {more} more" if more > 0 else top,
    )


def _table_cells(reason: "TableReason") -> tuple[str, ...]:
    cached = "" if reason.cached_share is None else f", {reason.cached_share:.0%} cached"
    return (
        reason.table,
        f"{reason.ms:.3f}",
        f"{reason.sharding_type}{cached}",
        _where(reason.where),
        _alternative(reason.next_place, reason.bound),
        _alternative(reason.next_way, reason.bound, with_type=True),
    )


def _alternative(other: "Alternative | None", bound: str, *, with_type: bool = False) -> str:
    if other is None:
        return bound or "none"
    what = f"{other.sharding_type} on {_where(other.where)}" if with_type else _where(other.where)
    return f"{what}: {other.overall_ms:.3f} ({other.extra_ms:+.3f})"


def _where(places: tuple[int, ...]) -> str:
    return ", ".join(map(str, places)) if places else "all"


def _columns(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """The rows with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
