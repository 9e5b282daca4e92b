"""Trains and places in one cell, and has the placements judged."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from dreamshard.names import SIMULATED
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError, Placer
from dreamshard.search import DreamShardPlacer
from dreamshard.sweep.bench import Bench
from dreamshard.sweep.design import Cell
from dreamshard.sweep.inputs import CellInputs, simulated
from dreamshard.sweep.judges import Judge, Placed
from dreamshard.sweep.real_ranks import TESTBED, on_real_ranks
from dreamshard.sweep.systems import SYSTEMS
from dreamshard.tasks import PlacementTask

_NETWORK_OF = "dreamshard"  # whose network also predicts the placements of all others


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """One placer on one task.

    Attributes:
        testbed: the hardware that was simulated or measured.
        is_exact: whether costs are the simulator's without noise; else measured, twice.
        budget: placements that a system of this cell may measure.
        overall_ms: cost of the placement, or the mean of its measurements; None where it did not fit, or none was found.
        compute_ms: largest forward and backward compute of a device; None likewise.
        first_ms: overall cost by the earlier measurement; None likewise, and for an exact cost.
        second_ms: by the later measurement.
        predicted_ms: what the placer itself predicts; None for one that does not.
        dreamshard_ms: what `dreamshard`'s cost network predicts; None for a cell without it.
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
    is_exact: bool
    budget: int
    seed: int
    placer: str
    task: str
    overall_ms: float | None = None
    compute_ms: float | None = None
    first_ms: float | None = None
    second_ms: float | None = None
    predicted_ms: float | None = None
    dreamshard_ms: float | None = None
    place_ms: float = 0.0
    has_shards: bool = False
    learning_s: float = 0.0
    measurements: int = 0

    def row(self) -> dict[str, object]:
        """As a row of a table."""
        return asdict(self)


def run_cell(cell: Cell) -> list[CellResult]:
    """Train every system of the cell, and place all of its tasks.

    Raises:
        ValueError: the testbed is neither `simulated` nor real CPU ranks, or a name is not a system's.
        MeasurementError: a rank died or hung.
    """
    if unknown := [name for name in cell.systems if name not in SYSTEMS]:
        raise ValueError(f"there is no system {unknown[0]!r}, so it cannot be placed by; choose from {sorted(SYSTEMS)}")
    kind = cell.testbed.partition(":")[0]
    if kind != SIMULATED and cell.testbed != TESTBED:
        raise ValueError(
            f"the cell {cell.name} is of testbed {cell.testbed!r}, but sweeps judge placements by the exact costs of "
            f"{SIMULATED!r} or by measurements on {TESTBED!r}; compare versions on other testbeds with `dreamshard compare`"
        )
    with on_real_ranks(cell) if cell.is_measured else simulated(cell) as inputs:
        bench = Bench(
            builders=SYSTEMS,
            testbed=inputs.testbed,
            pool=inputs.pool,
            tasks=inputs.training,
            measurements=cell.measurements,
            most_devices=max(size.devices for size in cell.placed),
            batch_size=inputs.batch_size,
            seed=cell.seed,
        )
        lines, placed = _place(cell, bench, inputs)
        return _judged(lines, placed, inputs.judge)


def _place(cell: Cell, bench: Bench, inputs: CellInputs) -> tuple[list[CellResult], list[Placed | None]]:
    """A line for each placer and task, not judged yet, and its placement if there is a legal one."""
    lines, placed = [], []
    for size in cell.placed:
        tasks = inputs.heldout(size)
        for name in cell.systems:
            system = bench.system(name)
            network = bench.system(_NETWORK_OF).placer if _NETWORK_OF in cell.systems else None
            for task in tasks:
                line = CellResult(
                    experiment=cell.experiment,
                    source=cell.source,
                    dims=cell.dims,
                    trained=str(cell.trained),
                    placed=str(size),
                    split=cell.split,
                    testbed=inputs.judge.hardware,
                    is_exact=inputs.judge.is_exact,
                    budget=cell.measurements,
                    seed=cell.seed,
                    placer=name,
                    task=task.name,
                    learning_s=system.learning_s,
                    measurements=system.measurements,
                )
                line, placement = _placement(line, system.placer, network, task)
                lines.append(line)
                placed.append(None if placement is None else (task, placement))
    return lines, placed


def _placement(
    line: CellResult, placer: Placer, network: DreamShardPlacer | None, task: PlacementTask
) -> tuple[CellResult, Placement | None]:
    began = time.process_time()
    try:
        placement = placer.place(task)
    except NoPlacementError:
        return replace(line, place_ms=1e3 * (time.process_time() - began)), None
    line = replace(line, place_ms=1e3 * (time.process_time() - began), has_shards=placement.shards is not None)
    if not task.is_legal(placement):
        return line, None
    own = placer.predict_overall_ms(task, placement) if isinstance(placer, DreamShardPlacer) else None
    by_network = None if network is None else network.predict_overall_ms(task, placement)
    return replace(line, predicted_ms=own, dreamshard_ms=by_network), placement


def _judged(lines: Sequence[CellResult], placed: Sequence[Placed | None], judge: Judge) -> list[CellResult]:
    """The lines with what their placements cost; one without a legal placement, or that did not fit, has none."""
    verdicts = iter(judge.verdicts([each for each in placed if each is not None]))
    judged = []
    for line, each in zip(lines, placed, strict=True):
        verdict = None if each is None else next(verdicts)
        judged.append(line if verdict is None else replace(line, **asdict(verdict)))
    return judged
