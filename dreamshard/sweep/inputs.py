"""What a cell trains and is judged on: testbed, tables, tasks and judge. On the simulator here; see also `real_ranks`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dreamshard.sweep import models
from dreamshard.sweep.design import META, Cell
from dreamshard.sweep.judges import ExactCosts, Judge
from dreamshard.sweep.tables import BATCH, Size, draw_tasks, pool_of
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.hardware_file import hardware
from dreamshard.testbeds.accelerators.specs import DEFAULT_SPEC
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.cluster.testbed import ClusterTestbed
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.workloads import Lookups

TRAINING_TASKS = 50  # as in the paper
TRAINING_SEED, PLACED_SEED = 5, 200


@dataclass(frozen=True, kw_only=True)
class CellInputs:
    """What a cell trains and is judged on.

    Attributes:
        testbed: on which systems measure what they learn from.
        judge: of the placements.
        pool: all tables that training may use.
        training: tasks to train on.
        heldout: the tasks to place, by size; their tables are not in `pool`, except those of a public model, whose variants
            no training sees.
        batch_size: samples of a step.
    """

    testbed: SimulatedTestbed | ClusterTestbed
    judge: Judge
    pool: Tables
    training: Sequence[PlacementTask]
    heldout: Callable[[Size], Sequence[PlacementTask]]
    batch_size: int


@contextmanager
def simulated(cell: Cell) -> Iterator[CellInputs]:
    """The inputs of a cell on `simulated`: measurements with noise, and a judge without."""
    preset = cell.testbed.partition(":")[2]
    spec = hardware(preset or DEFAULT_SPEC)
    setup = TestbedSetup(num_devices=cell.trained.devices, batch_size=BATCH, lookups=_no_lookups, seed=cell.seed)
    is_model = cell.source != META
    source, devices = cell.source, cell.trained.devices
    training = (
        models.training_tasks(source, spec, devices, TRAINING_TASKS, cell.seed)
        if is_model
        else draw_tasks(cell.dims, "train", cell.trained, TRAINING_TASKS, TRAINING_SEED)
    )

    def heldout(size: Size) -> list[PlacementTask]:
        if is_model:
            return models.heldout_tasks(source, spec, size.devices, cell.tasks_of(size), PLACED_SEED)
        return draw_tasks(cell.dims, cell.split, size, cell.tasks_of(size), PLACED_SEED)

    yield CellInputs(
        testbed=SimulatedTestbed(setup, spec),
        judge=ExactCosts(setup, spec),
        pool=models.tables_of(source) if is_model else pool_of(cell.dims, "train"),
        training=training,
        heldout=heldout,
        batch_size=BATCH,
    )


def _no_lookups(name: str) -> Lookups:
    raise AssertionError(f"the simulated testbed asked for the lookups of {name}, which it does not need")
