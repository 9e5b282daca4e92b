"""Testbeds for tests: the simulated one, and custom ones such as `tests.helpers.testbeds:by_count`."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.constraints import ANY_SHARDING
from dreamshard.hardware.accelerator import PRESETS, AcceleratorSpec
from dreamshard.hardware.roofline import placed_loads
from dreamshard.tables import Optimizer, Placement, Precision, Tables, TableSharding
from dreamshard.tasks import PlacementTask, Shards
from dreamshard.testbeds.base import Testbed, TestbedSetup
from dreamshard.testbeds.kinds import SimulatedTestbed
from tests.helpers.samples import sample_of_phases

RTX2080TI = PRESETS["rtx2080ti"]


def simulated(noise: float = 0.01, batch_size: int = 65_536, spec: AcceleratorSpec = RTX2080TI) -> SimulatedTestbed:
    """The simulated testbed, which needs no lookups."""

    def no_lookups(name: str):
        raise AssertionError(f"the simulated testbed asked for the lookups of {name}")

    setup = TestbedSetup(num_devices=2, batch_size=batch_size, lookups=no_lookups)
    return SimulatedTestbed(setup, spec, noise)


def any_sharding_task(tables: Tables, num_devices: int = 2, **options: Any) -> PlacementTask:
    """A task with room for all, whose tables may have any sharding type."""
    return PlacementTask(tables, num_devices, 2**40, constraints=replace(ANY_SHARDING, caching=True), **options)


def of_every_type(dim: int) -> dict[str, TableSharding]:
    """A table of this many columns by sharding type, on hosts of at least two devices."""
    half = ((0, dim // 2), (dim // 2, dim))
    return {
        "table_wise": TableSharding("table_wise", where=(1,)),
        "column_wise": TableSharding("column_wise", columns=half, where=(0, 1)),
        "row_wise": TableSharding("row_wise"),
        "table_row_wise": TableSharding("table_row_wise", where=(0,)),
        "grid_shard": TableSharding("grid_shard", columns=half, where=(0, 0)),
        "data_parallel": TableSharding("data_parallel"),
    }


def table_loads(
    tables: Tables, batch_size: int, precision: Precision = "fp32", optimizer: Optimizer = "sgd"
) -> Float[Tensor, "T L"]:
    """The roofline's loads of whole tables."""
    task = PlacementTask(tables, 1, 2**62, precision, optimizer)
    return placed_loads(Shards.of(task, Placement.whole([0] * len(tables), 1)), batch_size)


def on_two(*device: int) -> Placement:
    """Whole tables on two devices."""
    return Placement.whole(torch.tensor(device), 2)


class ByCount(Testbed):
    """Costs a millisecond per table in each phase."""

    name, hardware = "own", "abacus"

    def __init__(self, setup: TestbedSetup):
        self.batch_size = setup.batch_size

    def measure(self, task, placement):
        counts = torch.bincount(placement.device, minlength=task.num_devices).float()
        phases = counts[:, None].expand(-1, 4)
        return sample_of_phases(task, placement, phases, testbed="own", hardware="abacus", batch_size=self.batch_size)


by_count = ByCount


def not_a_testbed(setup: TestbedSetup) -> object:
    """Something that cannot measure."""
    return object()
