"""Trains and places in one cell. Placements are judged by the testbed's costs without noise."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from dreamshard.placer import NoPlacementError, Placer
from dreamshard.search import DreamShardPlacer
from dreamshard.sweep import models
from dreamshard.sweep.bench import Bench
from dreamshard.sweep.design import META, Cell
from dreamshard.sweep.systems import SYSTEMS
from dreamshard.sweep.tables import BATCH, Size, draw_tasks, pool_of
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.hardware_file import hardware
from dreamshard.testbeds.accelerators.specs import DEFAULT_SPEC
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.workloads import Lookups

_TRAINING_TASKS = 50  # as in the paper
_TRAINING_SEED, _PLACED_SEED = 5, 200


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """One placer on one task.

    Attributes:
        budget: placements that a system of this cell may measure.
        overall_ms: cost of the placement; None where it did not fit the devices, or none was found.
        compute_ms: largest forward and backward compute of a device; None likewise.
        predicted_ms: what the placer itself predicts; None for one that does not.
        place_ms: CPU time to place.
        has_shards: whether the placement splits tables by columns.
        learning_s: CPU time of learning, without measuring; 0 for a placer that learns nothing.
        measurements: placements measured to learn from.
    """

    experiment: str
    source: str
    dims: str
    trained: str
    placed: str
    split: str
    testbed: str
    budget: int
    seed: int
    placer: str
    task: str
    overall_ms: float | None
    compute_ms: float | None
    predicted_ms: float | None
    place_ms: float
    has_shards: bool
    learning_s: float
    measurements: int

    def row(self) -> dict[str, object]:
        """As a row of a table."""
        return asdict(self)


def run_cell(cell: Cell) -> list[CellResult]:
    """Train every system of the cell, and place all of its tasks.

    Raises:
        ValueError: the testbed has no costs without noise, or a name is not a system's.
    """
    kind, _, preset = cell.testbed.partition(":")
    if kind != "simulated":
        raise ValueError(
            f"the cell {cell.name} is of testbed {cell.testbed!r}, but sweeps judge placements by exact costs, which only "
            "`simulated` has; compare versions on other testbeds with `dreamshard compare`"
        )
    if unknown := [name for name in cell.systems if name not in SYSTEMS]:
        raise ValueError(f"there is no system {unknown[0]!r}, so it cannot be placed by; choose from {sorted(SYSTEMS)}")
    spec = hardware(preset or DEFAULT_SPEC)
    setup = TestbedSetup(num_devices=cell.trained.devices, batch_size=BATCH, lookups=_no_lookups, seed=cell.seed)
    testbed = SimulatedTestbed(setup, spec)
    is_model = cell.source != META
    training = (
        models.training_tasks(cell.source, spec, cell.trained.devices, _TRAINING_TASKS, cell.seed)
        if is_model
        else draw_tasks(cell.dims, "train", cell.trained, _TRAINING_TASKS, _TRAINING_SEED)
    )
    bench = Bench(
        builders=SYSTEMS,
        testbed=testbed,
        pool=models.tables_of(cell.source) if is_model else pool_of(cell.dims, "train"),
        tasks=training,
        measurements=cell.measurements,
        most_devices=max(size.devices for size in cell.placed),
        batch_size=BATCH,
        seed=cell.seed,
    )
    return list(_placed(cell, bench, SimulatedTestbed(setup, spec, noise=0.0)))


def _placed(cell: Cell, bench: Bench, exact: SimulatedTestbed) -> Iterator[CellResult]:
    for size in cell.placed:
        tasks = _tasks(cell, size, exact)
        for name in cell.systems:
            system = bench.system(name)
            common = CellResult(
                experiment=cell.experiment,
                source=cell.source,
                dims=cell.dims,
                trained=str(cell.trained),
                placed=str(size),
                split=cell.split,
                testbed=exact.hardware,
                budget=cell.measurements,
                seed=cell.seed,
                placer=name,
                task="",
                overall_ms=None,
                compute_ms=None,
                predicted_ms=None,
                place_ms=0.0,
                has_shards=False,
                learning_s=system.learning_s,
                measurements=system.measurements,
            )
            for task in tasks:
                yield _judged(replace(common, task=task.name), system.placer, task, exact)


def _tasks(cell: Cell, size: Size, exact: SimulatedTestbed) -> list[PlacementTask]:
    if cell.source != META:
        return models.heldout_tasks(cell.source, exact.spec, size.devices, cell.tasks_of(size), _PLACED_SEED)
    return draw_tasks(cell.dims, cell.split, size, cell.tasks_of(size), _PLACED_SEED)


def _judged(line: CellResult, placer: Placer, task: PlacementTask, exact: SimulatedTestbed) -> CellResult:
    began = time.process_time()
    try:
        placement = placer.place(task)
    except NoPlacementError:
        return replace(line, place_ms=1e3 * (time.process_time() - began))
    line = replace(line, place_ms=1e3 * (time.process_time() - began), has_shards=placement.shards is not None)
    if not task.is_legal(placement):
        return line
    costs = exact.measure(task, placement).costs
    compute = costs.forward_compute_ms + costs.backward_compute_ms
    predicted = placer.predict_overall_ms(task, placement) if isinstance(placer, DreamShardPlacer) else None
    return replace(line, overall_ms=float(costs.overall_ms()), compute_ms=float(compute.max()), predicted_ms=predicted)


def _no_lookups(name: str) -> Lookups:
    raise AssertionError(f"the simulated testbed asked for the lookups of {name}, which it does not need")
