"""`dreamshard place --current`: what the plan in use costs, what a new one gains and moves, and whether that is worth it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli import terminal

if TYPE_CHECKING:
    from dreamshard.moving import InUse, MovePrice, Point, Schedule, Step, Weighed
    from dreamshard.plan import Plan
    from dreamshard.sharding import ShardedPlacement
    from dreamshard.tables import Tables
    from dreamshard.tasks import PlacementTask
    from flows.cli.placers import Predictor

CurrentOption = Annotated[
    Path | None,
    typer.Option(
        "--current", help="Plan in use, dreamshard's or TorchRec's: weighs what a new one gains against moving."
    ),
]
CurrentTablesOption = Annotated[
    Path | None, typer.Option("--current-tables", help="List of the tables as they were when --current was made.")
]
StepsOption = Annotated[
    float,
    typer.Option("--steps-until-next", min=1, help="Training steps until the next change, over which a gain counts."),
]
MoveRateOption = Annotated[
    float, typer.Option("--move-gb-per-s", min=1e-6, help="GB/s at which all devices together move tables.")
]
CurveOption = Annotated[
    Path | None, typer.Option("--curve", help="File for gain against GiB moved: .csv, .png or .svg.")
]
CURVES = (".csv", ".png", ".svg")


def read_in_use(path: Path, task: "PlacementTask", rows_before: Mapping[str, int] | None) -> "InUse":
    """What a plan in use holds of the task's tables.

    Args:
        path: of dreamshard's plan, or of TorchRec's.
        task: of today's tables.
        rows_before: of the tables then, by name; None for those of TorchRec's file, or today's.

    Raises:
        ValueError: the file is missing, no plan, or one of other tables.
    """
    from dreamshard.moving import in_use

    plan, rows = read_any_plan(path, task.tables, task.devices_per_host, task.num_devices)
    if not (plan.rows or rows or rows_before):
        terminal.warn(
            f"{path} does not say how many rows its tables have, so a table whose rows have changed counts as the same; give "
            "the list as it was with --current-tables"
        )
    return in_use(plan, task, rows_before or rows)


def read_any_plan(
    path: Path, tables: "Tables", devices_per_host: int | None, num_devices: int = 0
) -> "tuple[Plan, dict[str, int]]":
    """A plan of dreamshard's or TorchRec's, and the rows of its tables as far as the file says.

    Args:
        path: of JSON.
        tables: of the model.
        devices_per_host: where the file does not say.
        num_devices: the fewest where the file does not say how many there are.

    Raises:
        ValueError: the file is missing, or no plan.
    """
    from dreamshard.plan import parse_plan, read_plan

    if not path.is_file():
        read_plan(path)  # says so
    text = path.read_text(encoding="utf-8")
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        content = None
    if not isinstance(content, dict) or not content or "shards" in content:
        return parse_plan(text, str(path)), {}
    try:
        from dreamshard.torchrec import current_plan
    except ImportError as error:
        raise ValueError(
            f"{path} looks like a plan of TorchRec, which cannot be imported ({error}), so it is not read; install it with "
            "`pip install --no-deps torchrec==1.8.0`, or give a plan of dreamshard's"
        ) from error
    plan = current_plan(text, tables, devices_per_host=devices_per_host, name=str(path))
    if content.get("world_size") is None:
        plan = replace(plan, num_devices=max(plan.num_devices, num_devices))
    return plan, {str(each["name"]): int(each["rows"]) for each in content.get("tables") or ()}


@dataclass(frozen=True)
class Transition:
    """The way from the plan in use to the one that is chosen.

    Attributes:
        placement: that is chosen.
        schedule: of its moves.
        weighed: against keeping the plan in use; None where no costs are predicted.
        price: of moving.
    """

    placement: "ShardedPlacement"
    schedule: "Schedule"
    weighed: "Weighed | None"
    price: "MovePrice"


def transition(
    task: "PlacementTask",
    current: "InUse",
    placement: "ShardedPlacement",
    predictor: "Predictor | None",
    steps_until_next: float,
    move_gb_per_s: float,
) -> Transition:
    """What to move, and in which order; without predicted costs all of the way, with names of devices that keep most."""
    from dreamshard.moving import MovePrice, blocks_of, renamed, schedule, weigh

    price = MovePrice(steps_until_next=steps_until_next, bytes_per_s=1e9 * move_gb_per_s)
    placement, weighed = renamed(task, placement, current.blocks), None
    if predictor is not None:
        weighed = weigh(task, current, placement, predictor, price)
        placement = weighed.chosen.placement
    steps = schedule(current.blocks, blocks_of(task, placement), task.capacity_bytes)
    return Transition(placement, steps, weighed, price)


def show_transition(task: "PlacementTask", current: "InUse", way: Transition) -> None:
    """Say what the plan in use costs, what the chosen one gains, and what moves in which order."""
    if way.weighed is not None:
        for line in _gain_lines(way.weighed, way.price):
            terminal.note(line)
    for line in _move_lines(task, current, way.schedule):
        terminal.note(line)


def _gain_lines(weighed: "Weighed", price: "MovePrice") -> Iterator[str]:
    from dreamshard.formatting import gib

    steps, rate = f"{price.steps_until_next:,.0f} steps", f"{price.bytes_per_s / 1e9:g} GB/s"
    yield f"weighed over {steps} until the next change, at {rate} while tables move (--steps-until-next, --move-gb-per-s)"
    chosen, everything, kept = weighed.chosen, weighed.moved_all, weighed.kept
    if kept is None:
        yield f"the plan in use cannot be kept: {weighed.why_not_kept}"
        return
    yield f"the plan in use: predicted {kept.overall_ms:.3f} ms; all of the new plan: {_gain(kept, everything)}"
    if chosen.moved_bytes == 0 and chosen.overall_ms >= kept.overall_ms:
        yield "keep it: no gain is worth its moves"
    else:
        seconds = price.move_ms(chosen.moved_bytes) / 1e3
        yield f"chosen: {_gain(kept, chosen)}; moving stops training for {seconds:.3g} s"
    if len(weighed.curve) > 1:
        yield "  GiB moved        ms      gain"
        for point in weighed.curve:
            share = 1 - point.overall_ms / kept.overall_ms if kept.overall_ms else 0.0
            yield f"  {gib(point.moved_bytes):>11}  {point.overall_ms:8.3f}  {share:8.2%}"


def _gain(kept: "Point", point: "Point") -> str:
    from dreamshard.formatting import gib

    saved = kept.overall_ms - point.overall_ms
    share = saved / kept.overall_ms if kept.overall_ms else 0.0
    return f"{point.overall_ms:.3f} ms, {saved:.3f} ms ({share:.1%}) less for {gib(point.moved_bytes)}"


def _move_lines(task: "PlacementTask", current: "InUse", schedule: "Schedule") -> Iterator[str]:
    from dreamshard.formatting import gib

    steps = [step for step in schedule.steps if step.kind != "load"]
    moved = [step for step in steps if step.kind == "move"]
    tables = {step.table for step in moved}
    parts = f" in {len(moved)} parts" if len(moved) > len(tables) else ""
    others = {"new": current.new, "of another size": current.changed, "gone": current.removed}
    named = [f"{how}: {_listed(names)}" for how, names in others.items() if names]
    more = f"; {'; '.join(named)}" if named else ""
    total = gib(schedule.bytes_of("move"))
    yield f"{len(tables)} of {len(current.blocks)} tables move{parts}, {total} in all{more}{':' if steps else ''}"
    for step in steps:
        yield f"  {_step(task, step)}"
    parked, staged = schedule.bytes_of("park"), schedule.bytes_of("stage")
    if parked:
        yield f"no direct order leaves every device enough room, so {gib(parked)} wait on other devices meanwhile"
    if staged:
        yield f"no order on the devices alone leaves each enough room, so {gib(staged)} wait in host memory meanwhile"


def _listed(names: tuple[str, ...]) -> str:
    """The first names, and how many there are beside them."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _step(task: "PlacementTask", step: "Step") -> str:
    t = task.tables.names.index(step.table)
    what = step.table
    if step.columns != (0, int(task.tables.dim[t])):
        what += f", columns {step.columns[0]} to {step.columns[1]}"
    if step.rows != (0, int(task.tables.rows[t])):
        what += f", rows {step.rows[0]} to {step.rows[1]}"
    size = f"{step.memory_bytes / 2**20:.4g} MiB"
    source, target = (
        place if place is not None and place >= 0 else "host memory" for place in (step.source, step.target)
    )
    if step.kind == "cut":
        return f"{what}: cut anew on device {target}, {size}"
    meanwhile = " meanwhile" if step.kind in ("park", "stage") else ""
    return f"{what}: device {source} -> {target}{meanwhile}, {size}"


def check_curve(path: Path | None, current: Path | None) -> None:
    """Check, before placing, that there will be a curve, and that it can be written."""
    if path is None:
        return
    if current is None:
        raise ValueError(
            "a curve shows what is gained over a plan in use by what moves, and none was given; add --current"
        )
    if path.suffix not in CURVES:
        raise ValueError(f"{path} is no curve that can be written; end its name in one of {', '.join(CURVES)}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"the folder {path.parent} does not exist, so the curve cannot be written to {path}; make it")


def write_curve(path: Path, way: Transition) -> None:
    """Gain against bytes moved, as a list or a picture.

    Raises:
        ValueError: no costs are predicted, so there is no curve.
    """
    from dreamshard.files import atomic

    weighed = way.weighed
    if weighed is None:
        raise ValueError("no cost is predicted, so there is no curve of gains; name --hardware, or train a placer")
    if path.suffix == ".csv":
        first = (weighed.kept or weighed.curve[0]).overall_ms
        lines = [f"{p.moved_bytes},{p.overall_ms:.6f},{first - p.overall_ms:.6f}" for p in weighed.curve]
        atomic.write(path, "\n".join(["moved_bytes,overall_ms,gain_ms", *lines, ""]))
    else:
        from flows.reports.moving_plot import plot_curve
        from flows.reports.what_if_plot import image

        atomic.write(path, image(plot_curve(weighed), path.suffix[1:]))
    terminal.note(f"wrote {path}")
