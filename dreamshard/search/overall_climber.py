"""`HillClimber` for cost models whose overall cost is a function of the devices' largest latents: the paper's network.

Its overall head is trained by itself, so the sum of the other heads says little about it. Every move and swap off one device
is evaluated exactly, since all of them share the latents of the devices that stay as they are.
"""

import numpy as np

from dreamshard.cost_model import OverallEvaluator
from dreamshard.cost_model.evaluator import Array, Indices, ShardEvaluator
from dreamshard.limits import PlacementLimits
from dreamshard.search.budget import step_units
from dreamshard.search.hill_climber import TOLERANCE


class OverallClimber:
    """A placement that is improved step by step.

    Attributes:
        device: `[T]`.
        sums: `[D, L]`.
        used: `[D]` bytes.
        overall_ms: predicted.
        step_units: work of one step; see `budget.py`.
    """

    def __init__(
        self,
        evaluator: ShardEvaluator,
        latents: Array,
        table_bytes: Indices,
        capacity_bytes: Indices,
        num_devices: int,
        device: Indices,
        limits: PlacementLimits | None = None,
    ) -> None:
        assert isinstance(evaluator, OverallEvaluator)
        self.overall, self.num_devices, self.limits = evaluator, num_devices, limits
        self.latents, self.table_bytes, self.capacity = latents, table_bytes, capacity_bytes
        self.step_units = step_units(len(table_bytes), num_devices, evaluator.step_units)
        self.device = device.copy()
        self.sums = np.zeros((num_devices, latents.shape[1]), np.float32)
        np.add.at(self.sums, device, latents)
        self.used = np.bincount(device, weights=table_bytes, minlength=num_devices).astype(np.int64)
        self.overall_ms = self._overall_ms()

    def step(self, *, widest: bool) -> bool:
        """Take the best step off the device that the cost depends on most, or second most; False where it has none."""
        held = self.overall.device_latents(self.sums)  # [D, L2]
        source = self._critical(held, 1 if widest else 0)
        inside = np.flatnonzero(self.device == source)  # [I]
        if source < 0 or not len(inside):
            return False
        others = _largest_of_others(held, source)  # [D, L2] the largest latents beside `source` and each device
        moves = self._moves_ms(inside, source, others)  # [I, D]
        swaps = self._swaps_ms(inside, source, others)  # [I, T]
        best_move, best_swap = int(moves.argmin()), int(swaps.argmin())
        if min(moves.flat[best_move], swaps.flat[best_swap]) >= self.overall_ms - TOLERANCE * abs(self.overall_ms):
            return False
        if moves.flat[best_move] <= swaps.flat[best_swap]:
            row, target = divmod(best_move, self.num_devices)
        else:
            row, back = divmod(best_swap, len(self.device))
            target = int(self.device[back])
            self._reassign(back, target, source)
        self._reassign(int(inside[row]), source, target)
        self.overall_ms = self._overall_ms()
        return True

    def _critical(self, held: Array, rank: int) -> int:
        """The device with the `rank`-th largest share in the cost, to first order; -1 where there are not so many."""
        largest = held.max(axis=0)
        share = np.zeros(self.num_devices, np.float32)
        np.add.at(share, held.argmax(axis=0), self.overall.overall_gradient(largest) * largest)
        return int(np.argsort(-share, kind="stable")[rank]) if rank < self.num_devices else -1

    def _moves_ms(self, inside: Indices, source: int, others: Array) -> Array:
        """`[I, D]` overall cost once a table of `source` is on another device; infinite where that is not legal."""
        left = self.overall.device_latents(self.sums[source] - self.latents[inside])  # [I, L2]
        grown = self.overall.device_latents(self.sums + self.latents[inside][:, None])  # [I, D, L2]
        cost_ms = self.overall.overall_ms(np.maximum(np.maximum(left[:, None], grown), others))
        cost_ms[self.table_bytes[inside][:, None] > self.capacity - self.used] = np.inf
        cost_ms[:, source] = np.inf
        if self.limits is not None:
            cost_ms[~self.limits.moves(inside, self.device)] = np.inf
        return cost_ms

    def _swaps_ms(self, inside: Indices, source: int, others: Array) -> Array:
        """`[I, T]` the same once a table of `source` and one of another device have changed places."""
        change = self.latents - self.latents[inside][:, None]  # [I, T, L] what `source` gains
        here = self.overall.device_latents(self.sums[source] + change)  # [I, T, L2]
        there = self.overall.device_latents(self.sums[self.device] - change)
        cost_ms = self.overall.overall_ms(np.maximum(np.maximum(here, there), others[self.device]))
        growth = self.table_bytes[inside][:, None] - self.table_bytes  # [I, T] bytes that the other device gains
        room = self.capacity - self.used
        cost_ms[(growth > np.broadcast_to(room, self.used.shape)[self.device]) | (-growth > room[source])] = np.inf
        cost_ms[:, inside] = np.inf
        if self.limits is not None:
            cost_ms[~self.limits.swaps(inside, source, self.device)] = np.inf
        return cost_ms

    def _overall_ms(self) -> float:
        return float(self.overall.overall_ms(self.overall.device_latents(self.sums).max(axis=0)))

    def _reassign(self, table: int, source: int, target: int) -> None:
        self.device[table] = target
        for device, sign in ((source, -1), (target, 1)):
            self.sums[device] += sign * self.latents[table]
            self.used[device] += sign * self.table_bytes[table]


def _largest_of_others(held: Array, excluded: int) -> Array:
    """`[D, L2]` for each device, the largest latents beside its own and those of `excluded`; -inf where there are none."""
    others = held.copy()
    others[excluded] = -np.inf
    columns = np.arange(held.shape[1])
    first = others.argmax(axis=0)
    largest = np.broadcast_to(others[first, columns], held.shape).copy()
    others[first, columns] = -np.inf
    largest[first, columns] = others.max(axis=0)
    return largest
