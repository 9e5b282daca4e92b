"""The cells of a sweep. A cell trains once and places at one or more sizes, and is the unit of resuming."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, get_args

from dreamshard.names import SIMULATED
from dreamshard.peers import OF_TORCHREC
from dreamshard.sweep.ablations import ABLATIONS
from dreamshard.sweep.rosters import (
    AT_ANY_SIZE,
    COMPLETE,
    COSTLY,
    ON_RANKS,
    OTHERS,
    RULES,
    SLOW,
    WITHOUT_POLICY,
)
from dreamshard.sweep.tables import Dims, Size, Split
from dreamshard.workloads import META_WORKLOADS

Experiment = Literal["sizes", "transfer", "measurements", "ablations", "workloads", "real_ranks"]
"""`sizes`: trained and placed at each size. `transfer`: trained at one size, placed at all. `measurements`: by number of
measurements. `ablations`: DreamShard with one part left out. `workloads`: one public model and its drifted variants.
`real_ranks`: learnt from and judged by measurements on real CPU ranks."""

META = META_WORKLOADS[0]
"""Source of the cells that draw tasks of Meta's tables (2021 and 2022, see `tables`)."""

SIZES = (Size(20, 4), Size(50, 4), Size(80, 4), Size(40, 8), Size(80, 8), Size(160, 8), Size(200, 8))
LARGE = Size(800, 128)
PAPER_SIZE = Size(50, 4)
"""The size of most of the paper's figures."""
MODELS = ("mlperf-dlrm-dcnv2", "nvidia-synthetic-tiny", "nvidia-synthetic-small", "nvidia-synthetic-medium")
_ALL_DIMS: tuple[Dims, ...] = get_args(Dims)
_LARGE_MODELS = MODELS[2:]  # of more than a hundred tables
_MODEL_TABLES = 200  # of a public model, roughly
_FEW_TABLES, _TASKS_FEW, _TASKS_MANY = 100, 30, 10  # tasks up to so many tables, and beyond
_SEEDS = (0, 1, 2)
_TASKS_SHORT, _MEASUREMENTS_SHORT = 10, 30  # on real ranks, in the short form


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training of every system, and what it places.

    Attributes:
        source: a bundled workload; `META` for tasks of Meta's tables.
        trained: size of the training tasks.
        placed: sizes of the tasks to place.
        systems: names of placers (`systems.SYSTEMS`).
        measurements: placements that each trained system measures.
        num_tasks: of each size; None for 30 up to 100 tables and 10 beyond.
    """

    experiment: Experiment
    source: str = META
    dims: Dims = "dim16"
    trained: Size
    placed: tuple[Size, ...]
    systems: tuple[str, ...]
    seed: int
    split: Split
    testbed: str = "simulated"
    measurements: int = 100
    num_tasks: int | None = None

    @property
    def is_measured(self) -> bool:
        """Whether costs are measured on real devices, so that nothing else may run beside it."""
        return self.testbed.partition(":")[0] != SIMULATED

    @property
    def work(self) -> int:
        """A rough measure of its time, to start long cells first: systems x tables to train on and to place."""
        return len(self.systems) * sum(size.tables or _MODEL_TABLES for size in (self.trained, *self.placed))

    @property
    def name(self) -> str:
        """Unique in its sweep; a file name."""
        source = "" if self.source == META else f"{self.source}-"
        return f"{self.experiment}-{source}{self.dims}-{self.trained}-m{self.measurements}-{self.split}-s{self.seed}"

    def tasks_of(self, size: Size) -> int:
        """Tasks to draw of a size."""
        return self.num_tasks or (_TASKS_FEW if size.tables <= _FEW_TABLES else _TASKS_MANY)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A named set of cells."""

    name: str
    cells: tuple[Cell, ...]


def paper_table(*, short: bool, split: Split) -> Sweep:
    """The paper's tables and figures: all placers by size, transfer, number of measurements; public models besides.

    The short form has every experiment and takes less than ten minutes on two idle cores: two sizes, one transfer, one
    model. Sizes and measurements have three seeds with mixed dims, else there is one; `COSTLY` systems are at the smallest
    size only.
    """
    systems = (*RULES, *OTHERS)
    sizes = list(_sizes(systems, split, short=short))
    cells = [
        *sizes,
        *_transfer(split, short=short),
        *_by_measurements(sizes, (10,) if short else (10, 30, 300)),
        *_ablations(split, short=short),
    ]
    models, seeds = (MODELS[:1], _SEEDS[:1]) if short else (MODELS, _SEEDS)
    cells += [
        _model(model, _quick(systems) if short else systems, seed, split) for model, seed in product(models, seeds)
    ]
    cells += [_on_ranks(seed, split, short=short) for seed in seeds]
    return Sweep(name="paper_table", cells=tuple(cells))


def _quick(systems: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in systems if name not in COSTLY)


def _sizes(systems: Sequence[str], split: Split, *, short: bool) -> Iterator[Cell]:
    """Everything at every size; in the short form all seeds are with mixed dims only, and all systems at the least size."""
    least = SIZES[0]
    for dims, size, seed in product(_ALL_DIMS, (least, PAPER_SIZE) if short else SIZES, _SEEDS):
        if short and seed and dims != "mixed":
            continue
        own = _quick(systems) if short and (dims, size) != ("mixed", least) else systems
        if size == PAPER_SIZE and not short:
            own = (*systems, *SLOW)
        yield Cell(
            experiment="sizes", dims=dims, trained=size, placed=(size,), systems=tuple(own), seed=seed, split=split
        )


def _transfer(split: Split, *, short: bool) -> Iterator[Cell]:
    """Trained at one size, placed at all; in the short form at one other."""
    origins = (PAPER_SIZE,) if short else (Size(20, 4), PAPER_SIZE, Size(80, 8))
    systems = (*RULES, *(_quick(AT_ANY_SIZE) if short else AT_ANY_SIZE))
    for dims, origin, seed in product(_ALL_DIMS, origins, _SEEDS[:1] if short else _SEEDS):
        yield Cell(
            experiment="transfer",
            dims=dims,
            trained=origin,
            placed=(Size(100, 8),) if short else (*SIZES, LARGE),
            systems=systems,
            seed=seed,
            split=split,
        )


def _by_measurements(sizes: Sequence[Cell], counts: Sequence[int]) -> Iterator[Cell]:
    """The cells of the paper's size with other numbers of measurements, without TorchRec's planner, which learns nothing."""
    for count, cell in product(counts, sizes):
        if cell.trained == PAPER_SIZE:
            own = tuple(name for name in cell.systems if name not in (*OF_TORCHREC, *SLOW))
            yield replace(cell, experiment="measurements", measurements=count, systems=(*own, WITHOUT_POLICY))


def _ablations(split: Split, *, short: bool) -> Iterator[Cell]:
    """Complete systems and those with a part left out, trained and placed at the paper's size."""
    size = PAPER_SIZE
    few = ("dreamshard", "paper", WITHOUT_POLICY, "paper_without_costs", "paper_real_mdp")
    systems = few if short else (*COMPLETE, *ABLATIONS)
    for dims, seed in product(_ALL_DIMS[-1:] if short else _ALL_DIMS, _SEEDS[:1] if short else _SEEDS):
        yield Cell(
            experiment="ablations",
            dims=dims,
            trained=size,
            placed=(size,),
            systems=(*RULES, *systems),
            seed=seed,
            split=split,
        )


def _model(source: str, systems: Sequence[str], seed: int, split: Split) -> Cell:
    """All tables of a public list on eight A100s, and drifted variants of them."""
    size = Size(0, 8)  # as many tables as there are
    return Cell(
        experiment="workloads",
        source=source,
        dims="mixed",
        trained=size,
        placed=(size,),
        systems=tuple(systems),
        seed=seed,
        split=split,
        testbed="simulated:a100",
        num_tasks=_TASKS_MANY if source in _LARGE_MODELS else None,
    )


def _on_ranks(seed: int, split: Split, *, short: bool) -> Cell:
    """Twenty tables on two real CPU ranks."""
    size = Size(20, 2)
    return Cell(
        experiment="real_ranks",
        dims="mixed",
        trained=size,
        placed=(size,),
        systems=(*RULES, *ON_RANKS) if short else (*RULES, *ON_RANKS, "autoshard", "rnn"),
        seed=seed,
        split=split,
        testbed="cluster:cpu",
        measurements=_MEASUREMENTS_SHORT if short else 100,
        num_tasks=_TASKS_SHORT if short else None,
    )


SWEEPS: dict[str, Callable[..., Sweep]] = {function.__name__: function for function in (paper_table,)}


def sweep(name: str, *, short: bool = False, split: Split = "validation") -> Sweep:
    """The sweep called `name`.

    Args:
        short: a form of it that takes less than ten minutes on two idle cores.
        split: tables to place. Choices are made on `validation`; `test` is looked at once, at the end.

    Raises:
        ValueError: there is no such sweep; the message lists all.
    """
    if name not in SWEEPS:
        raise ValueError(f"there is no sweep {name!r}, so there is nothing to run; choose one of {sorted(SWEEPS)}")
    return SWEEPS[name](short=short, split=split)


def cells_of(designed: Sweep, experiments: Sequence[str] = (), *, real_ranks: bool = True) -> tuple[Cell, ...]:
    """The cells to run.

    Args:
        experiments: names of experiments; none for all.
        real_ranks: with the cells that measure.

    Raises:
        ValueError: the sweep has no such experiment, or no cell is left; the message lists all.
    """
    known = list(dict.fromkeys(cell.experiment for cell in designed.cells))
    if unknown := [name for name in experiments if name not in known]:
        raise ValueError(
            f"the sweep {designed.name} has no experiment {unknown[0]!r}, so it cannot be run; choose from {', '.join(known)}"
        )
    chosen = [cell for cell in designed.cells if cell.experiment in (experiments or known)]
    cells = tuple(cell for cell in chosen if real_ranks or not cell.is_measured)
    if not cells:
        raise ValueError(
            "all chosen cells measure on real ranks, and --no-real-ranks leaves these out, so there is nothing to run; "
            "leave that option out"
        )
    return cells
