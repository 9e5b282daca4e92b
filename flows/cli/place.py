"""`dreamshard place`: a placement for one's own tables, now."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.cli import terminal
from flows.cli.options import HomeOption, enter

if TYPE_CHECKING:
    from dreamshard.placer import Placer
    from dreamshard.plan import Plan
    from dreamshard.search import DreamShardPlacer
    from dreamshard.tables import Tables
    from dreamshard.tasks import PlacementTask


def place(
    tables: Annotated[
        Path,
        typer.Argument(help="CSV or Parquet (name, rows, dim, pooling_factor, bin_0..16), or TorchRec-style JSON."),
    ],
    devices: Annotated[int, typer.Option("--devices", min=1, help="How many devices.")],
    memory_gb: Annotated[float, typer.Option("--memory-gb", min=0.001, help="Room for tables on each, GiB.")],
    placer: Annotated[
        str,
        typer.Option(
            "--placer", help="champion, challenger, previous, a version, cost_greedy, a rule of thumb, or a rival."
        ),
    ] = "champion",
    budget_ms: Annotated[float | None, typer.Option("--budget-ms", min=0, help="Time for the search.")] = None,
    current: Annotated[Path | None, typer.Option("--current", help="The PLAN.json in use: shows what moves.")] = None,
    form: Annotated[Literal["json", "csv", "torchrec"], typer.Option("--format", help="Of the plan.")] = "json",
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan here instead of stdout.")] = None,
    precision: Annotated[Literal["fp32", "fp16"], typer.Option("--precision", help="Of the weights.")] = "fp32",
    optimizer: Annotated[
        Literal["sgd", "rowwise_adagrad"], typer.Option("--optimizer", help="Its state takes room.")
    ] = "sgd",
    home: HomeOption = None,
) -> None:
    """A placement of TABLES: the plan on stdout or in a file, figures on stderr."""
    enter(home)
    _check(out)
    from dreamshard.plan import make_plan, read_plan
    from dreamshard.search import DreamShardPlacer
    from dreamshard.tasks import PlacementTask

    task = PlacementTask(
        _read(tables), devices, round(memory_gb * 2**30), precision=precision, optimizer=optimizer, name=tables.name
    )
    before = read_plan(current) if current else None
    chosen, name = find_placer(placer)
    oracle = _oracle(chosen)
    placement = chosen.place(task, budget_ms) if isinstance(chosen, DreamShardPlacer) else chosen.place(task)
    plan = make_plan(task, placement, name, oracle.predict(task, placement) if oracle else None)
    if before is not None:
        _show_moves(task, before, plan)
    _write(plan_text(plan, form, task), out)
    if plan.overall_ms is not None:
        split = len(plan.shards) - len(task.tables)
        _note(
            f"{name}: predicted {plan.overall_ms:.3f} ms for {len(task.tables)} tables on {devices} devices"
            + (f", split by columns into {len(plan.shards)} shards" if split else "")
        )
        bound = oracle.lower_bound_ms(task, placement) if oracle else None
        if bound is not None:
            what = "shards" if split else "tables"
            _note(
                f"lower bound of any placement of these {what}: {bound:.3f} ms; {plan.overall_ms / bound - 1:.0%} above it"
            )


def find_placer(name: str) -> "tuple[Placer, str]":
    """The placer called `name` and what a plan calls it.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    from dreamshard.baselines import baselines
    from dreamshard.peers import LEARNED, PEERS, peer
    from dreamshard.recipes import RECIPES
    from dreamshard.shard_profiling.bundled_placers import bundled_names, load_bundled
    from storage.mlflow_store import registry
    from storage.settings import Settings

    rules: dict[str, Any] = dict(baselines())
    if name in rules:
        return rules[name], name
    if name == "cost_greedy":
        return _cost_greedy(), name
    if name in PEERS:
        rival = peer(name, _champion())
        if name in LEARNED:
            _note(f"{name}: trains on these tables alone, by the champion's predicted costs; seconds to minutes")
        return rival, name
    own = [Settings.load().home / "placers"]
    if f"{name}_costs" in RECIPES or name in bundled_names(own):
        found = load_bundled(name, own)
        _note(f"{name}: {found}")
        return found.placer, f"dreamshard {name}"
    if name not in registry.ALIASES and not name.isdigit():
        raise ValueError(
            f"there is no placer {name!r}, so nothing can place the tables; give {', '.join(registry.ALIASES)}, a "
            f"version's number, h200, or one of {sorted([*rules, *PEERS, 'cost_greedy'])}"
        )
    try:
        return registry.load_placer(name), f"dreamshard {name}"
    except ValueError as error:
        raise ValueError(f"{error}; --placer also takes a rule of thumb, e.g. {', '.join(sorted(rules))}") from error


def plan_text(plan: "Plan", form: str, task: "PlacementTask") -> str:
    """The plan in the form asked for."""
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


def _read(path: Path) -> "Tables":
    from dreamshard.workloads import read_tables
    from storage.store import open_store

    lake = open_store().lake
    versions = lake.dataset_versions()
    found = read_tables(path, lake.read_dataset(versions[-1]) if versions else None)
    if found.defaulted:
        source = "taken from the mean of the tables ingested last"
        if not versions:
            source = "no tables have been ingested into this home, so lookups are filled in by a Zipf law"
            source += " and one per sample" if "pooling_factor" in found.defaulted else ""
        _note(f"{path} lacks {', '.join(found.defaulted)}: {source}")
    return found.tables


def _oracle(placer: "Placer") -> "DreamShardPlacer | None":
    """Who predicts costs: the placer itself if it can, else the champion if there is one."""
    from dreamshard.search import DreamShardPlacer

    if isinstance(placer, DreamShardPlacer):
        return placer
    try:
        return _champion()
    except ValueError as error:
        _note(f"no cost is predicted: the champion cannot be loaded: {error}")
        return None


def _champion() -> "DreamShardPlacer | None":
    """The champion, or None before the first.

    Raises:
        ValueError: its files are gone or damaged.
    """
    from storage.mlflow_store import registry
    from storage.settings import Settings

    return None if registry.champion(Settings.load()) is None else registry.load_placer("champion")


def _cost_greedy() -> "Placer":
    """Greedy on the champion's cost network.

    Raises:
        ValueError: there is no champion, or its files are gone or damaged.
    """
    from dreamshard.search import GreedyCostPlacer

    champion = _champion()
    if champion is None:
        raise ValueError(
            "cost_greedy places by a trained cost network and there is none; train one with `dreamshard run`, or give "
            "a rule of thumb, which needs none"
        )
    return GreedyCostPlacer(champion.cost_network, champion.normaliser)


def _show_moves(task: "PlacementTask", before: "Plan", after: "Plan") -> None:
    from dreamshard.formatting import gib
    from dreamshard.placement import moves

    placed = {shard.table for shard in before.shards}
    known = [t for t, name in enumerate(task.tables.names) if name in placed]
    if not known:
        raise ValueError("the plan in use places none of these tables, so nothing moves; give the plan of this model")
    shared = task.tables.select(known)
    found = moves(shared, task.table_bytes[known], before.placement(shared), after.placement(shared))
    total = sum(move.memory_bytes for move in found)
    tables, dims = {move.table for move in found}, dict(zip(shared.names, shared.dim.tolist(), strict=True))
    ranges = f" in {len(found)} ranges of columns" if len(found) > len(tables) else ""
    new = f"; {len(task.tables) - len(known)} are new" if len(known) < len(task.tables) else ""
    _note(f"{len(tables)} of {len(known)} tables move{ranges}, {gib(total)} in all{new}{':' if found else ''}")
    for move in found:
        whole = (move.start, move.end) == (0, dims[move.table])
        what = move.table if whole else f"{move.table}, columns {move.start} to {move.end}"
        _note(f"  {what}: device {move.source} -> {move.target}, {move.memory_bytes / 2**20:.4g} MiB")


def _check(out: Path | None) -> None:
    """Say before placing that the plan cannot be written.

    Raises:
        ValueError: there is no such folder, or the name is a folder's.
    """
    if out is not None and not out.absolute().parent.is_dir():
        raise ValueError(
            f"the folder {out.parent} does not exist, so the plan cannot be written to {out}; make it, or give --out "
            "another path"
        )
    if out is not None and out.is_dir():
        raise ValueError(f"{out} is a folder, so the plan cannot be written to it; give --out the path of a file")


def _write(text: str, out: Path | None) -> None:
    if out is None:
        typer.echo(text, nl=not text.endswith("\n"))
        return
    from dreamshard.files import atomic

    atomic.write(out, text)
    _note(f"wrote {out}")


def _note(line: str) -> None:
    terminal.ERR.print(line, highlight=False, markup=False, soft_wrap=True)
