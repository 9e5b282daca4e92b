"""The cells of a sweep. A cell trains once and places at one or more sizes, and is the unit of resuming."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, get_args

from dreamshard.names import COMPUTED
from dreamshard.peers import OF_TORCHREC
from dreamshard.sweep.ablations import ABLATIONS
from dreamshard.sweep.tables import Dims, Size, Split
from dreamshard.workloads import META_WORKLOADS

Experiment = Literal["sizes", "transfer", "measurements", "ablations", "workloads", "real_ranks"]
"""`sizes`: trained and placed at each size. `transfer`: trained at one size, placed at all. `measurements`: by number of
measurements. `ablations`: DreamShard with one part left out. `workloads`: one public model and its drifted variants.
`real_ranks`: learnt from and judged by measurements on real CPU ranks."""

META = META_WORKLOADS[0]
"""Source of the cells that draw tasks of Meta's tables (2021 and 2022, see `tables`)."""

RULES = ("random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")
OTHERS = (
    *("cost_greedy", "dreamshard", "dreamshard_policy", "dreamshard_columns", "paper", "autoshard", "rnn"),
    *("neuroshard", "neuroshard_columns", "neuroshard_predicted", "neuroshard_predicted_columns"),
    *OF_TORCHREC,
)
SLOW = ("rnn_predicted",)
"""Systems that train for a minute and more: at the paper's size, and not in the short form."""
COMPLETE = ("cost_greedy", "dreamshard", "dreamshard_policy", "paper")
"""Systems that ablations are compared with."""

LEARNED = ("dreamshard", "paper", "autoshard", "neuroshard_predicted")
"""Systems that train once and place at any size."""

ON_RANKS = ("cost_greedy", "dreamshard", "dreamshard_policy", "paper", "neuroshard", "torchrec_planner")
"""Systems of the short cell on real ranks, where a measurement takes most of a second; the full ones have two more."""

SIZES = (Size(20, 4), Size(50, 4), Size(80, 4), Size(40, 8), Size(80, 8), Size(160, 8), Size(200, 8))
LARGE = Size(800, 128)
_PAPER_SIZE = Size(50, 4)  # of most of the paper's figures
MODELS = ("mlperf-dlrm-dcnv2", "nvidia-synthetic-tiny", "nvidia-synthetic-small", "nvidia-synthetic-medium")
_ALL_DIMS: tuple[Dims, ...] = get_args(Dims)
_MODEL_TABLES = 200  # of a public model, roughly
_FEW_TABLES, _TASKS_FEW, _TASKS_MANY = 100, 30, 10  # tasks up to so many tables, and beyond
_TASKS_SHORT = 4  # on real ranks, in the short form


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
        return self.testbed.partition(":")[0] not in COMPUTED

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

    The short form has two sizes, one transfer and one model, and no system that trains or measures for a minute or more.
    """
    seeds, systems = (0, 1, 2), (*RULES, *OTHERS)
    sizes = (Size(20, 4), Size(50, 4)) if short else SIZES
    cells = [
        Cell(
            experiment="sizes",
            dims=dims,
            trained=size,
            placed=(size,),
            systems=(*systems, *SLOW) if size == _PAPER_SIZE and not short else systems,
            seed=seed,
            split=split,
        )
        for dims, size, seed in product(_ALL_DIMS, sizes, seeds)
    ]
    origins = (_PAPER_SIZE,) if short else (Size(20, 4), _PAPER_SIZE, Size(80, 8))
    targets = (Size(100, 8),) if short else (*SIZES, LARGE)
    learned = (*RULES, *LEARNED)
    cells += [
        Cell(
            experiment="transfer",
            dims=dims,
            trained=origin,
            placed=targets,
            systems=learned,
            seed=seed,
            split=split,
        )
        for dims, origin, seed in product(_ALL_DIMS, origins, seeds)
    ]
    learning = tuple(name for name in systems if name not in OF_TORCHREC)  # which learn nothing
    cells += [
        replace(cell, experiment="measurements", measurements=count, systems=learning)
        for count in ((10,) if short else (10, 30, 300))
        for cell in cells
        if cell.experiment == "sizes" and cell.trained == _PAPER_SIZE
    ]
    cells += _ablations(split, short=short)
    models = MODELS[:1] if short else MODELS
    cells += [_model(model, systems, seed, split) for model, seed in product(models, seeds)]
    cells += [_on_ranks(seed, split, short=short) for seed in (seeds[:1] if short else seeds)]
    return Sweep(name="paper_table", cells=tuple(cells))


def _ablations(split: Split, *, short: bool) -> Iterator[Cell]:
    """Complete systems and those with a part left out, trained and placed at the paper's size."""
    size = _PAPER_SIZE
    systems = ("paper", "paper_without_costs", "paper_real_mdp") if short else (*COMPLETE, *ABLATIONS)
    for dims, seed in product(_ALL_DIMS[-1:] if short else _ALL_DIMS, (0, 1, 2)):
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
        num_tasks=10,
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
        num_tasks=_TASKS_SHORT if short else _TASKS_MANY,
    )


SWEEPS: dict[str, Callable[..., Sweep]] = {function.__name__: function for function in (paper_table,)}


def sweep(name: str, *, short: bool = False, split: Split = "validation") -> Sweep:
    """The sweep called `name`.

    Args:
        short: a form of it that takes minutes.
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
