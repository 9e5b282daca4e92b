"""Improve a placement by the predicted cost: move a table off the slowest device, or swap it for another.

Candidates are ranked by the first-order effect of each move and swap (one matrix product), and the most promising are
evaluated exactly. A step is taken when it lowers the slower of the two devices it touches and does not raise the
overall cost, so devices that tie for slowest are worked off one after another.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.shard_costs import Array, ShardCosts

Indices = NDArray[np.int64]

_EXACT = 24  # candidates evaluated exactly per step
_TOLERANCE = 1e-4  # of the overall cost: smaller gains are not worth a step


def improve(
    costs: ShardCosts,
    latents: Float[Tensor, "T L"],
    table_bytes: Int[Tensor, " T"],
    capacity_bytes: int,
    device: Int[Tensor, " T"],
    num_devices: int,
    out_of_time: Callable[[], bool],
) -> Int[Tensor, " T"]:
    """A placement predicted to be no dearer than `device`, and legal if that is; stops at a local optimum."""
    search = _Search(costs, latents.numpy(), table_bytes.numpy(), capacity_bytes, device.numpy().copy(), num_devices)
    while not out_of_time() and search.step():
        pass
    return torch.from_numpy(search.device)


class _Search:
    """Where the search stands: per device sums, compute, rates and bytes."""

    def __init__(
        self, costs: ShardCosts, latents: Array, table_bytes: Indices, capacity: int, device: Indices, num_devices: int
    ) -> None:
        self.costs, self.latents, self.table_bytes, self.capacity = costs, latents, table_bytes, capacity
        self.device, self.num_devices = device, num_devices
        loads = costs.empty(1, num_devices)
        self.sums = loads.sums[0]
        np.add.at(self.sums, device, latents)
        self.used = np.bincount(device, weights=table_bytes, minlength=num_devices).astype(np.int64)
        self.empty_ms = (loads.forward_ms + loads.backward_ms)[0, 0]
        self.compute, self.rates = self._compute(self.sums)

    def step(self) -> bool:
        """Take the best improving move or swap; False where there is none."""
        total = self.compute + self.costs.comm_ms(self.sums)  # [D]
        slowest = int(total.argmax())
        out, back, to = self._candidates(slowest, total)
        if len(out) == 0:
            return False
        change = np.where(back[:, None] >= 0, self.latents[back], np.float32(0)) - self.latents[out]  # [C, L]
        sums = np.repeat(self.sums[None], len(out), axis=0)  # [C, D, L]
        rows = np.arange(len(out))
        sums[:, slowest] += change
        sums[rows, to] -= change
        compute = np.repeat(self.compute[None], len(out), axis=0)
        rates_from_to = []
        for touched in (np.full_like(to, slowest), to):
            compute[rows, touched], rates = self._compute(sums[rows, touched])
            rates_from_to.append(rates)
        after = compute + self.costs.comm_ms(sums)  # [C, D]
        pair = np.maximum(after[:, slowest], after[rows, to])
        tolerance = _TOLERANCE * total[slowest]
        better = (pair < total[slowest] - tolerance) & (after.max(axis=1) <= total[slowest] + 0.01 * tolerance)
        if not better.any():
            return False
        best = int(np.where(better, after.max(axis=1) + 1e-3 * pair, np.inf).argmin())
        self._take(int(out[best]), int(back[best]), slowest, int(to[best]))
        for target, rates in zip((slowest, int(to[best])), rates_from_to, strict=True):
            self.sums[target], self.compute[target] = sums[best, target], compute[best, target]
            self.rates[target] = rates[best]
        return True

    def _candidates(self, slowest: int, total: Array) -> tuple[Indices, Indices, Indices]:
        """The most promising moves (`back` is -1) and swaps: table out, table back, and the device it goes to."""
        inside = np.flatnonzero(self.device == slowest)  # [I]
        work = self.latents[inside, : self.rates.shape[1]]  # [I, R]
        leaves = work @ self.rates[slowest]  # [I]
        arrives = work @ self.rates.T  # [I, D]
        room = self.capacity - self.used  # [D]
        moved = np.maximum((total[slowest] - leaves)[:, None], total + arrives)  # [I, D]
        moved[self.table_bytes[inside][:, None] > room] = np.inf
        moved[:, slowest] = np.inf

        every = self.latents[:, : self.rates.shape[1]]  # [T, R]
        frees = (every * self.rates[self.device]).sum(axis=1)  # [T] where it is
        burdens = every @ self.rates[slowest]  # [T] on the slowest
        swapped = np.maximum(
            (total[slowest] - leaves)[:, None] + burdens, (total[self.device] - frees) + arrives[:, self.device]
        )  # [I, T]
        growth = self.table_bytes[inside][:, None] - self.table_bytes  # [I, T] bytes that the other device gains
        swapped[(growth > room[self.device]) | (-growth > room[slowest])] = np.inf
        swapped[:, inside] = np.inf

        score = np.concatenate([moved.ravel(), swapped.ravel()])
        count = min(_EXACT, len(score))
        chosen = np.argpartition(score, count - 1)[:count]
        chosen = chosen[score[chosen] < 1.02 * total[slowest]]
        is_move = chosen < moved.size
        rest = np.where(is_move, 0, chosen - moved.size)
        out = inside[np.where(is_move, chosen // self.num_devices, rest // len(self.device))]
        back = np.where(is_move, -1, rest % len(self.device))
        return out, back, np.where(is_move, chosen % self.num_devices, self.device[back])

    def _compute(self, sums: Array) -> tuple[Array, Array]:
        """Compute milliseconds `[N]` and rates `[N, R]`; an empty device costs what the network says it does."""
        forward, backward, rates = self.costs.compute(sums)
        return np.where(np.any(sums, axis=1), forward + backward, self.empty_ms), rates

    def _take(self, out: int, back: int, slowest: int, to: int) -> None:
        self.device[out] = to
        self.used[slowest] -= self.table_bytes[out]
        self.used[to] += self.table_bytes[out]
        if back >= 0:
            self.device[back] = slowest
            self.used[slowest] += self.table_bytes[back]
            self.used[to] -= self.table_bytes[back]
