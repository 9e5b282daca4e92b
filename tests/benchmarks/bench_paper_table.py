"""Every placer on unseen tables of the simulated testbed, with dim 16 and mixed dims, at three sizes.

Every placer that learns has the same number of measurements, with 1 % noise, of tasks of its size; those trained at 50x4 are
placed at 800x128 too. Placements are judged by exact costs. A row says how much a placer saves over the best heuristic,
chosen on these very tasks, with its 95 % interval over tasks and seeds. Names that end in `_columns` may split tables by
columns; all others keep them whole.

Half of Meta's 2021 tables are for training. A quarter of them, and all 2022 tables, are the test, to be looked at once. The
last quarter is for choices; `--quick`, which takes about two minutes, places tasks of these.

The same command continues after an interruption: `paper_table.csv` has the cells that ended, and `paper_table.md` the
tables of RESULTS. Both are in `tests/benchmarks/data`, or in `.benchmarks` with `--quick`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from dreamshard.cost_model.exchanges import exchanges_for
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from tests.benchmarks.contest import DATA, QUICK, Contest, measured, results, summarised, tables
from tests.benchmarks.measuring import Row
from tests.benchmarks.pools import ALL_DIMS, BATCH, Dims, Size, Split, drawn, pool_of, repeated
from tests.helpers.laws import SIMULATED, LawTestbed

TRAINED, LARGE = (Size(200, 8), Size(50, 4)), Size(800, 128)
AS_TRAINED = ("neuroshard_columns", "torchrec_planner_columns")
"""Placers of tasks of their training's size only: they take minutes at 800x128."""

_TRAINING_SEED, _PLACED_SEED = 5, 200
_PAPER_BYTES = 5 * 2**30  # memory of a device in the paper (its section 4.1)
_EVEN_SHARE, _LARGEST = 1.5, 1.2  # of a device's memory, if 5 GiB hold less than these


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training of every placer, and the sizes of the tasks that these place."""

    dims: Dims
    trained: Size
    placed: tuple[Size, ...]
    seed: int
    split: Split = "test"
    measurements: int = 100
    num_tasks: int | None = None  # 30 up to 100 tables, 10 beyond


def rows(quick: bool = False) -> Iterator[Row]:
    """Measure the cells that the CSV lacks; then a row for each setting and placer."""
    folder = QUICK if quick else DATA
    figures_read = measured(folder / "paper_table.csv", ("dims", "trained", "seed"), cells(quick), run)
    figures = summarised(figures_read, ("dims", "size"))
    (folder / "paper_table.md").write_text(tables(figures, "dims"), encoding="utf-8")
    for line in figures.itertuples():
        times = f"learns in {line.learning_s:.3g} s CPU, places in {line.place_ms:.3g} ms"
        name = f"{line.size}, {line.dims}: {line.placer} saves over the best heuristic {line.gain}; {times}"
        yield {"name": name, "value": None if line.gain.mean is None else 100 * line.gain.mean, "unit": "%"}


def cells(quick: bool) -> list[Cell]:
    """The cells, the longest first."""
    if quick:
        small = Cell(dims="mixed", trained=Size(20, 4), placed=(Size(20, 4), Size(40, 8)), seed=0, split="validation")
        return [replace(small, seed=seed, measurements=20, num_tasks=3) for seed in (0, 1)]
    return [
        Cell(dims=dims, trained=size, placed=(size, LARGE) if size == TRAINED[-1] else (size,), seed=seed)
        for size, dims, seed in product(TRAINED, ALL_DIMS, (0, 1, 2))
    ]


def run(cell: Cell, known: set[tuple[str, str]]) -> list[dict[str, Any]]:
    """Train every placer of a cell, and place all of its tasks, except the sizes and placers that are `known`."""
    pool, testbed = pool_of(cell.dims, "train"), LawTestbed(SIMULATED, cell.seed)
    tasks = draw_tasks(pool, f"{cell.dims}-train", cell.trained, 50, _TRAINING_SEED)
    designed = exchanges_for(tasks, BATCH, [size.devices for size in cell.placed])
    exchanges = [testbed.measure_exchange(exchange) for exchange in designed]
    makers = Contest(pool, tasks, testbed, exchanges, cell.seed, cell.measurements).makers()
    lines, about = [], {"dims": cell.dims, "trained": str(cell.trained), "seed": cell.seed}
    for size in cell.placed:
        count, unseen = cell.num_tasks or (30 if size.tables <= 100 else 10), pool_of(cell.dims, cell.split)
        placed = draw_tasks(unseen, f"{cell.dims}-{cell.split}", size, count, _PLACED_SEED)
        text = str(size) if size == cell.trained else f"{size}, trained at {cell.trained}"
        able = {name: make for name, make in makers.items() if size == cell.trained or name not in AS_TRAINED}
        lines += [about | row for row in results(able, {text: placed}, known, SIMULATED.true_ms)]
    return lines


def draw_tasks(pool: Tables, name: str, size: Size, count: int, seed: int) -> list[PlacementTask]:
    """Seeded tasks of distinct tables; if the pool has too few, it is repeated under other names.

    Devices have the paper's 5 GiB, or more if a legal placement would otherwise hardly exist.
    """
    drawn_tasks = []
    for number, drawn_tables in enumerate(drawn(repeated(pool, size.tables), size, count, seed)):
        table_bytes = PlacementTask(drawn_tables, 1, 0, "fp16").table_bytes.double()
        needed = max(_EVEN_SHARE * float(table_bytes.sum()) / size.devices, _LARGEST * float(table_bytes.max()))
        memory_bytes = max(_PAPER_BYTES, int(needed))
        label = f"{name}-{size}-{number:03}"
        drawn_tasks.append(PlacementTask(drawn_tables, size.devices, memory_bytes, "fp16", "sgd", label))
    return drawn_tasks
