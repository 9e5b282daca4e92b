"""A testbed whose laws the project does not know: `--testbed tests.helpers.unseen_testbed:make`.

Its costs obey other laws than the simulated testbed's: work grows with less than the dim, fused work with less than the
sum, more tables than a cache for their descriptors slow a device down, as does touching many distinct bytes; the
backward pass pays for rows that many samples share; the all-to-all mixes what a device sends itself, the mean of all and
more than the largest.
"""

from dataclasses import dataclass

import torch

from dreamshard.costs import CostSample
from dreamshard.placement import Placement
from dreamshard.search.baselines import baselines
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import Testbed, TestbedSetup
from tests.helpers.samples import sample_of_phases
from tests.helpers.tables import device_memory_bytes

NOISE, BATCH = 0.01, 65_536


@dataclass(frozen=True)
class UnseenTestbed(Testbed):
    """Has only what a testbed needs."""

    name, hardware = "unseen", "a law of its own"
    seed: int

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        shards = Shards.of(task, placement)
        whole, placed = shards.as_task(), Placement.whole(shards.device, task.num_devices)
        phases = true_phases_ms(whole, placed.device[None])[0]
        drawn = torch.Generator().manual_seed(self.seed + int((placed.device * torch.arange(len(placed.device))).sum()))
        phases = phases * (1 + NOISE * torch.randn(phases.shape, generator=drawn, dtype=phases.dtype))
        return sample_of_phases(
            whole, placed, phases.float(), testbed="unseen", hardware="a law of its own", batch_size=BATCH
        )


def make(setup: TestbedSetup) -> UnseenTestbed:
    """Make the testbed."""
    return UnseenTestbed(setup.seed)


def true_phases_ms(task: PlacementTask, device: torch.Tensor) -> torch.Tensor:
    """`[B, D, 4]` without noise."""
    tables = task.tables
    dim, lookups = tables.dim.double(), tables.pooling_factor.double() * BATCH
    unique = tables.unique_rows.double() * lookups / tables.lookups.double().clamp(min=1)
    work = 1e-8 * lookups * (6 + dim**0.85) * (0.4 + (unique / lookups.clamp(min=1)) ** 0.35)  # [T] ms
    shared = 2e-8 * (lookups - unique).clamp(min=0) * dim**0.5
    columns = torch.stack([work, shared, unique * dim * 4, torch.ones_like(dim), dim], dim=1)  # [T, 5]
    holds = (device[:, None, :] == torch.arange(task.num_devices)[None, :, None]).double()  # [B, D, T]
    total, hot, touched, count, dims = (holds @ columns).unbind(-1)  # [B, D]
    crowded = 1 + 0.2 * torch.sigmoid((count - 14) / 3)
    thrashing = 1 + 0.3 * torch.sigmoid((touched / 2e8).clamp(min=1e-9).log() * 1.5)
    busy = (count > 0.5).double()
    forward = busy * 0.05 + total**0.93 * crowded * thrashing
    backward = busy * 0.12 + 1.6 * total**0.95 * thrashing + hot * crowded
    sent = dims / task.num_devices * (task.num_devices - 1)
    comm = 0.03 + 0.004 * sent + 0.003 * sent.mean(-1, keepdim=True) + 0.0012 * sent.amax(-1, keepdim=True) ** 1.15
    return torch.stack([forward, comm, 1.1 * comm, backward], dim=-1)


def true_ms(task: PlacementTask, placement: Placement) -> float:
    """Overall cost of a placement, without noise."""
    shards = Shards.of(task, placement)
    return float(true_phases_ms(shards.as_task(), shards.device[None]).sum(-1).amax())


def annealed_ms(task: PlacementTask, steps: int, chains: int = 24, seed: int = 0) -> float:
    """The lowest true cost that long annealing by moves and swaps reaches from the best rule of thumb."""

    def cost(device: torch.Tensor) -> torch.Tensor:
        return true_phases_ms(task, device).sum(-1).amax(-1)

    starts = torch.stack([placer.place(task).device for placer in baselines().values()])
    device = starts[cost(starts).argmin()].repeat(chains, 1)
    current = cost(device)
    best, hot = float(current.min()), 0.02 * float(current[0])
    generator, chain, num_tables = torch.Generator().manual_seed(seed), torch.arange(chains), len(task.tables)
    for i in range(steps):
        temperature = hot * 0.01 ** (i / steps)
        first, second = (torch.randint(num_tables, (chains,), generator=generator) for _ in range(2))
        swap = torch.rand(chains, generator=generator) < 0.5
        target = torch.randint(task.num_devices, (chains,), generator=generator)
        trial = device.clone()
        trial[chain, first] = torch.where(swap, device[chain, second], target)
        trial[chain[swap], second[swap]] = device[chain[swap], first[swap]]
        fits = (device_memory_bytes(task.table_bytes, trial, task.num_devices) <= task.memory_bytes).all(dim=1)
        new = cost(trial)
        taken = fits & (torch.rand(chains, generator=generator) < ((current - new) / temperature).clamp(max=0).exp())
        device = torch.where(taken[:, None], trial, device)
        current = torch.where(taken, new, current)
        best = min(best, float(current.min()))
    return best
