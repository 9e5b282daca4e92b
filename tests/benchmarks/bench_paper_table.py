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
from dataclasses import dataclass
from itertools import product
from typing import Any

from dreamshard.cost_model.exchanges import exchanges_for
from tests.benchmarks.contest import Contest, report, results
from tests.benchmarks.measuring import ALL_DIMS, Dims, Row, Size, Split, pool_of, tasks
from tests.helpers.laws import BATCH, SIMULATED, LawTestbed

TRAINED, LARGE = (Size(200, 8), Size(50, 4)), Size(800, 128)
AS_TRAINED = ("neuroshard_columns", "torchrec_planner_columns")
"""Placers of tasks of their training's size only: they take minutes at 800x128."""

_TRAINING_SEED, _PLACED_SEED = 5, 200


@dataclass(frozen=True)
class Cell:
    """One training of every placer, and the sizes of the tasks that these place."""

    dims: Dims
    trained: Size
    placed: tuple[Size, ...]
    seed: int
    quick: bool


def rows(quick: bool = False) -> Iterator[Row]:
    """Measure the cells that the CSV lacks; then a row for each setting and placer."""
    for line in report("paper_table", ("dims", "trained", "seed"), cells(quick), run, quick).itertuples():
        times = f"learns in {line.learning_s:.3g} s CPU, places in {line.place_ms:.3g} ms"
        name = f"{line.size}, {line.dims}: {line.placer} saves over the best heuristic {line.gain}; {times}"
        yield {"name": name, "value": 100 * line.gain.mean, "unit": "%"}


def cells(quick: bool) -> list[Cell]:
    """The cells, the longest first."""
    if quick:
        return [Cell("mixed", Size(20, 4), (Size(20, 4), Size(40, 8)), seed, quick) for seed in (0, 1)]
    sizes = {size: (size, LARGE) if size == TRAINED[-1] else (size,) for size in TRAINED}
    return [Cell(dims, size, sizes[size], seed, quick) for size, dims, seed in product(TRAINED, ALL_DIMS, (0, 1, 2))]


def run(cell: Cell, known: set[tuple[str, str]]) -> list[dict[str, Any]]:
    """Train every placer of a cell, and place all of its tasks, except the sizes and placers that are `known`."""
    pool, testbed = pool_of(cell.dims, "train"), LawTestbed(SIMULATED, cell.seed)
    training = tasks(cell.dims, "train", cell.trained, 50, _TRAINING_SEED, "paper")
    designed = exchanges_for(training, BATCH, [size.devices for size in cell.placed])
    exchanges = [testbed.measure_exchange(exchange) for exchange in designed]
    makers = Contest(pool, training, testbed, exchanges, cell.seed, 20 if cell.quick else 100).makers()
    split: Split = "validation" if cell.quick else "test"
    lines, about = [], {"dims": cell.dims, "trained": str(cell.trained), "seed": cell.seed}
    for size in cell.placed:
        count = 3 if cell.quick else 30 if size.tables <= 100 else 10
        placed = tasks(cell.dims, split, size, count, _PLACED_SEED, "paper")
        text = str(size) if size == cell.trained else f"{size}, trained at {cell.trained}"
        able = {name: make for name, make in makers.items() if size == cell.trained or name not in AS_TRAINED}
        lines += [about | row for row in results(able, {text: placed}, known, SIMULATED.true_ms)]
    return lines
