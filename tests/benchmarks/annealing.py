"""Long simulated annealing on the *true* costs of the simulated testbed: the reference for placements.

It is no placer, since it queries the testbed's costs a hundred thousand times. All chains step together. A chain draws a
few random legal moves and swaps and takes one of them, or none, with Boltzmann probabilities (a heat bath); the
temperature falls geometrically. Most candidates take a table from the slowest device or from the one with the largest sum
of dims, because only these delay the others. Only the two devices that a candidate touches are costed again.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dreamshard.hardware.links import all_to_all_s, vector_bytes
from dreamshard.hardware.loads import DIM
from dreamshard.hardware.roofline import sharding_costs
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError
from dreamshard.search.baselines import baselines
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.simulated import SimulatedTestbed
from tests.helpers.testbeds import costs_of_loads, table_loads

HOT, COLD = 2e-2, 3e-4
"""First and last temperature, relative to the cost of the best start."""
FROM_SLOWEST, FROM_WIDEST = 0.5, 0.7  # cumulative shares of candidates


@dataclass(frozen=True)
class Annealed:
    """The best placement found and its true cost."""

    placement: Placement
    overall_ms: float


def true_ms(testbed: SimulatedTestbed, task: PlacementTask, placement: Placement) -> float:
    """The model's cost of a placement, without noise."""
    shards = Shards.of(task, placement)
    return float(sharding_costs(task, shards, testbed.setup.batch_size, testbed.spec).overall_ms())


def anneal(
    testbed: SimulatedTestbed,
    task: PlacementTask,
    *,
    steps: int = 3000,
    chains: int = 16,
    candidates: int = 32,
    seed: int = 0,
    start: Placement | None = None,
) -> Annealed:
    """Anneal from the best rule of thumb, or from `start` if that is better.

    Raises:
        NoPlacementError: no rule of thumb finds room.
    """
    run = _Chains(testbed, task, _best_start(testbed, task, start), chains, candidates, seed)
    hot, cold = HOT * float(run.cost[0]), COLD * float(run.cost[0])
    for i in range(steps):
        run.step(hot * (cold / hot) ** (i / steps))
    winner = Placement.whole(run.best_device[int(run.best.argmin())].clone(), task.num_devices)
    return Annealed(winner, true_ms(testbed, task, winner))


def _best_start(testbed: SimulatedTestbed, task: PlacementTask, start: Placement | None) -> Int[Tensor, " T"]:
    found = [] if start is None else [start]
    for placer in baselines().values():
        try:
            found.append(placer.place(task))
        except NoPlacementError:
            continue
    if not found:
        raise NoPlacementError(f"no rule of thumb finds room for {task.name}, so annealing has nowhere to start")
    return min(found, key=lambda placement: true_ms(testbed, task, placement)).device


class _Chains:
    """State of all chains: C chains, P candidates per step.

    Attributes:
        device: `[C, T]`.
        sums: `[C, D, K]` loads of each device.
        compute: `[C, D]` compute milliseconds of each device.
        used: `[C, D]` bytes.
        cost: `[C]` overall milliseconds.
    """

    def __init__(
        self,
        testbed: SimulatedTestbed,
        task: PlacementTask,
        start: Int[Tensor, " T"],
        chains: int,
        candidates: int,
        seed: int,
    ) -> None:
        self.batch_size, self.spec = testbed.setup.batch_size, testbed.spec
        self.loads = table_loads(task.tables, self.batch_size, task.precision, task.optimizer)
        self.task, self.table_bytes = task, task.table_bytes
        self.candidates, self.generator = candidates, torch.Generator().manual_seed(seed)
        self.device = start.repeat(chains, 1)
        self.chain = torch.arange(chains)
        loads, num_devices = self.loads, task.num_devices
        one = torch.zeros(num_devices, loads.shape[1], dtype=loads.dtype).index_add_(0, start, loads)
        self.sums = one.repeat(chains, 1, 1)
        self.used = torch.zeros(num_devices, dtype=torch.int64).index_add_(0, start, self.table_bytes).repeat(chains, 1)
        self.compute = self._compute(self.sums)
        self.cost = self.compute.amax(-1) + self._comm(self.sums[..., DIM])
        self.best, self.best_device = self.cost.clone(), self.device.clone()

    def step(self, temperature: float) -> None:
        """Let each chain take one of its candidates or stay."""
        out, back, source, target = self._draw()
        legal = self._legal(out, back, source, target)
        change = self.loads[out] - self.loads[back] * (back >= 0)[..., None]  # [C, P, K]
        chain = self.chain[:, None]
        pair = torch.stack(
            [self.sums[chain, source] - change, self.sums[chain, target] + change], dim=2
        )  # [C, P, 2, K]
        compute = self._compute(pair)  # [C, P, 2]
        cost = self._cost_after(source, target, compute, pair[..., DIM])  # [C, P]
        energy = torch.cat([self.cost[:, None], cost.masked_fill(~legal, torch.inf)], dim=1)  # [C, 1+P]
        noise = -torch.rand(energy.shape, generator=self.generator, dtype=energy.dtype).clamp(min=1e-300).log()
        chosen = (-energy / temperature - noise.log()).argmax(dim=1) - 1  # [C]
        moved = torch.nonzero(chosen >= 0).flatten()
        if len(moved):
            self._take(moved, *(value[moved, chosen[moved]] for value in (out, back, source, target)))
            p = chosen[moved]
            for i, touched in enumerate((source, target)):
                self.sums[moved, touched[moved, p]] = pair[moved, p, i]
                self.compute[moved, touched[moved, p]] = compute[moved, p, i]
            self.cost[moved] = cost[moved, p]
            better = self.cost < self.best
            self.best = torch.where(better, self.cost, self.best)
            self.best_device[better] = self.device[better]

    def _draw(self) -> tuple[Int[Tensor, "C P"], Int[Tensor, "C P"], Int[Tensor, "C P"], Int[Tensor, "C P"]]:
        """Table that leaves, table that comes back (-1 for a move), and the devices they leave and reach."""
        shape = (len(self.chain), self.candidates)
        num_tables, num_devices = self.device.shape[1], self.task.num_devices
        kind, place = self._rand(shape), self._rand(shape)
        out = (place * num_tables).long()
        for share, of in ((FROM_WIDEST, self.sums[..., DIM].argmax(1)), (FROM_SLOWEST, self.compute.argmax(1))):
            out = torch.where(kind < share, self._member(of, place), out)
        swap = self._rand(shape) < 0.5
        back = torch.where(swap, (self._rand(shape) * num_tables).long(), -1)
        chain = self.chain[:, None]
        target = torch.where(swap, self.device[chain, back.clamp(min=0)], (self._rand(shape) * num_devices).long())
        return out, back, self.device[chain, out], target

    def _member(self, of: Int[Tensor, " C"], place: Float[Tensor, "C P"]) -> Int[Tensor, "C P"]:
        """A table of device `of`, at the fraction `place` of its tables; any table if it has none."""
        rank = (self.device == of[:, None]).cumsum(dim=1)  # [C, T]
        wanted = (place * rank[:, -1:]).long() + 1
        return torch.searchsorted(rank, wanted).clamp(max=rank.shape[1] - 1)

    def _legal(
        self, out: Int[Tensor, "C P"], back: Int[Tensor, "C P"], source: Int[Tensor, "C P"], target: Int[Tensor, "C P"]
    ) -> Bool[Tensor, "C P"]:
        grows = self.table_bytes[out] - self.table_bytes[back] * (back >= 0)
        chain, room = self.chain[:, None], self.task.memory_bytes
        fits = (self.used[chain, target] + grows <= room) & (self.used[chain, source] - grows <= room)
        return fits & (source != target)

    def _take(
        self,
        chain: Int[Tensor, " M"],
        out: Int[Tensor, " M"],
        back: Int[Tensor, " M"],
        source: Int[Tensor, " M"],
        target: Int[Tensor, " M"],
    ) -> None:
        grows = self.table_bytes[out] - self.table_bytes[back] * (back >= 0)
        self.device[chain, out] = target
        swapped = back >= 0
        self.device[chain[swapped], back[swapped]] = source[swapped]
        self.used[chain, source] -= grows
        self.used[chain, target] += grows

    def _cost_after(
        self,
        source: Int[Tensor, "C P"],
        target: Int[Tensor, "C P"],
        compute: Float[Tensor, "C P 2"],
        dims: Float[Tensor, "C P 2"],
    ) -> Float[Tensor, "C P"]:
        """Overall cost with the two touched devices replaced."""
        return self._largest(self.compute, source, target, compute) + self._comm_of_widest(
            self._largest(self.sums[..., DIM], source, target, dims)
        )

    def _largest(
        self,
        values: Float[Tensor, "C D"],
        source: Int[Tensor, "C P"],
        target: Int[Tensor, "C P"],
        touched: Float[Tensor, "C P 2"],
    ) -> Float[Tensor, "C P"]:
        """Largest over devices: of three at the top, the first that is not touched, or one of the touched."""
        top = values.topk(min(3, values.shape[1]), dim=1)
        held = (top.indices[:, None] == source[..., None]) | (top.indices[:, None] == target[..., None])  # [C, P, 3]
        others = top.values[:, None].masked_fill(held, -torch.inf).amax(-1)  # [C, P]
        return torch.maximum(others, touched.amax(-1))

    def _compute(self, sums: Float[Tensor, "*B K"]) -> Float[Tensor, "*B"]:
        costs = costs_of_loads(sums, self.batch_size, self.spec)
        return costs.forward_compute_ms + costs.backward_compute_ms

    def _comm(self, dims: Float[Tensor, "*B D"]) -> Float[Tensor, "*B"]:
        return self._comm_of_widest(dims.amax(-1))

    def _comm_of_widest(self, widest: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """Both all-to-alls, which the device that sends most determines."""
        dims = widest[..., None].expand(*widest.shape, self.task.num_devices)
        return 2e3 * all_to_all_s(vector_bytes(dims, self.batch_size), self.spec)[..., 0]

    def _rand(self, shape: tuple[int, int]) -> Float[Tensor, "C P"]:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)
