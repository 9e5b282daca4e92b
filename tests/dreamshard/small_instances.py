"""Instances small enough to check by hand, and a state that has learnt a little."""

from collections.abc import Sequence
from functools import cache

import torch

from dreamshard.costs import CostSample, DeviceCosts
from dreamshard.placement import Placement
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask, sample_tasks
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.testbeds.specs import RTX2080TI
from dreamshard.training import (
    TrainingConfig,
    TrainingState,
    fit_costs,
    improve_policy,
    make_placer,
    propose,
    start_training,
)

BATCH = 1024
ROW_BYTES = 16  # of a table with dim 4 in fp32


def tables_of(
    rows: Sequence[int], dim: Sequence[int] | int = 4, pooling: Sequence[float] | float = 2.0, prefix: str = "t"
) -> Tables:
    """Tables of these sizes, in which every row looked up is looked up twice."""
    num_tables = len(rows)
    dims = [dim] * num_tables if isinstance(dim, int) else list(dim)
    factors = [pooling] * num_tables if isinstance(pooling, int | float) else list(pooling)
    lookups = (torch.tensor(factors, dtype=torch.float64) * BATCH).long()
    bins = torch.zeros(num_tables, 17, dtype=torch.float64)
    bins[:, 1] = 1.0
    return Tables(
        tuple(f"{prefix}{t}" for t in range(num_tables)),
        torch.tensor(rows, dtype=torch.int64),
        torch.tensor(dims, dtype=torch.int64),
        torch.tensor(factors, dtype=torch.float64),
        bins,
        lookups,
        torch.minimum(lookups // 2, torch.tensor(rows, dtype=torch.int64)).clamp(min=1),
    )


def task_of(rows: Sequence[int], num_devices: int, room_rows: int, name: str = "task") -> PlacementTask:
    """Tables of dim 4 on devices with room for `room_rows` rows."""
    return PlacementTask(tables_of(rows), num_devices, room_rows * ROW_BYTES, name=name)


def pool_of(num_tables: int, seed: int = 0) -> Tables:
    """Varied tables, drawn with `seed`."""
    generator = torch.Generator().manual_seed(seed)
    rows = (10 ** (3 + 3 * torch.rand(num_tables, generator=generator))).long()
    dim = torch.tensor([4, 8, 16, 32, 64])[torch.randint(5, (num_tables,), generator=generator)]
    pooling = (torch.randn(num_tables, generator=generator) + 1.0).exp().clamp(0.05, 60)
    return tables_of(rows.tolist(), dim.tolist(), pooling.tolist(), prefix=f"p{seed}-")


def simulated(noise: float = 0.01, batch_size: int = 65_536) -> SimulatedTestbed:
    """The simulated testbed, which needs no lookups."""

    def no_lookups(name: str):
        raise AssertionError(f"asked for the lookups of {name}")

    return SimulatedTestbed(TestbedSetup(num_devices=2, batch_size=batch_size, lookups=no_lookups), RTX2080TI, noise)


def sample_of(task: PlacementTask, placement: Placement, device_ms: Sequence[float]) -> CostSample:
    """A sample with these forward-compute milliseconds per device and nothing else."""
    phases = torch.zeros(len(device_ms), 4)
    phases[:, 0] = torch.tensor(list(device_ms), dtype=torch.float32)
    costs = DeviceCosts.from_phases(phases)
    return CostSample(
        task=task,
        placement=placement,
        costs=costs,
        overall_ms=float(costs.overall_ms()),
        spread_ms=0.0,
        repeats=1,
        clock="model",
        testbed="by hand",
        hardware="simulated",
        batch_size=BATCH,
    )


TINY = TrainingConfig(
    iterations=3, placements_per_iteration=4, cost_steps=20, cost_batch=8, policy_updates=2, episodes=4
)


def tiny_tasks(num_devices: int = 2, seed: int = 1) -> list[PlacementTask]:
    """Four tasks of eight tables."""
    generator = torch.Generator().manual_seed(seed)
    return sample_tasks(pool_of(24), 4, 8, num_devices, 2**30, generator)


def run_round(state: TrainingState, tasks: Sequence[PlacementTask], samples: list[CostSample]) -> list[CostSample]:
    """One round of Algorithm 1 on the simulated testbed; returns all samples so far."""
    testbed = simulated()
    grown = [*samples, *(testbed.measure(task, placement) for task, placement in propose(state, tasks))]
    fit_costs(state, grown)
    improve_policy(state, tasks)
    return grown


@cache
@torch.enable_grad()
def learnt() -> TrainingState:
    """Two rounds of a short run; for reading only."""
    state = start_training(pool_of(24), TINY, seed=0)
    samples: list[CostSample] = []
    for _ in range(2):
        samples = run_round(state, tiny_tasks(), samples)
    return state


def learnt_placer():
    """The placer of `learnt()`."""
    return make_placer(learnt())
