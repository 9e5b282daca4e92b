"""Improve a placement by the predicted cost: move a table off a critical device, or swap it for another.

Critical are the slowest device and the widest one, whose sum of dims governs the all-to-all for all. Candidates are
ranked by the first-order effect of each move and swap (one matrix product), and the most promising are evaluated
exactly. A step must lower the overall cost; or keep it and relieve the critical device without making another one
critical, so that devices that tie are worked off one after another.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.cost_model.fast_evaluation import Array, Exchange, ShardCosts

Indices = NDArray[np.int64]

_EXACT = 24  # candidates evaluated exactly per step
_TOLERANCE = 1e-4  # of the overall cost: smaller gains are not worth a step
_RELIEF = 0.05  # weight of what the two devices are left with, beside the overall cost
_KICKED = 4  # tables that a perturbation moves
_ROUNDING = 1e-3  # what taking the last table away may leave of a sum


@dataclass(frozen=True)
class LocalSearch:
    """What stays the same during a search.

    Attributes:
        latents: `[T, L]` of the cost network.
        table_bytes: `[T]`.
        capacity_bytes: per device.
    """

    costs: ShardCosts
    latents: Float[Tensor, "T L"]
    table_bytes: Int[Tensor, " T"]
    capacity_bytes: int
    num_devices: int

    def best_of(
        self, starts: Int[Tensor, "S T"], kicks: int, out_of_time: Callable[[], bool], seed: int = 0
    ) -> Int[Tensor, " T"]:
        """Improve every start, then the best again and again after moving a few of its tables at random.

        Args:
            starts: legal placements, the most promising first; the first is always improved as far as time allows.
            kicks: how often the best is perturbed, if there is time.

        Returns:
            A placement predicted to be no dearer than the first start, and legal.
        """
        best = self._climb(starts[0].numpy(), out_of_time)
        for start in starts[1:]:
            best = self._better(best, start.numpy(), out_of_time)
        generator = np.random.default_rng(seed)
        for _ in range(kicks):
            if out_of_time():
                break
            best = self._better(best, self._kicked(best.device, generator), out_of_time)
        return torch.from_numpy(best.device)

    def _better(self, best: "_Climber", device: Indices, out_of_time: Callable[[], bool]) -> "_Climber":
        if out_of_time():
            return best
        other = self._climb(device, out_of_time)
        return other if other.overall_ms < best.overall_ms else best

    def _climb(self, device: Indices, out_of_time: Callable[[], bool]) -> "_Climber":
        """Step until nothing helps; at most `2 D` steps in a row that only relieve a device."""
        climber = _Climber(
            self.costs, self.latents.numpy(), self.table_bytes.numpy(), self.capacity_bytes, device, self.num_devices
        )
        plateau = 0
        while not out_of_time() and plateau <= 2 * self.num_devices:
            before = climber.overall_ms
            if not (climber.step(widest=False) or climber.step(widest=True)):
                break
            plateau = 0 if climber.overall_ms < before * (1 - _TOLERANCE) else plateau + 1
        return climber

    def _kicked(self, device: Indices, generator: np.random.Generator) -> Indices:
        """A copy with up to `_KICKED` tables on other devices that have room."""
        kicked, sizes = device.copy(), self.table_bytes.numpy()
        used = np.bincount(device, weights=sizes, minlength=self.num_devices).astype(np.int64)
        for table in generator.integers(len(device), size=_KICKED).tolist():
            to = int(generator.integers(self.num_devices))
            if used[to] + sizes[table] <= self.capacity_bytes:
                used[kicked[table]] -= sizes[table]
                used[to] += sizes[table]
                kicked[table] = to
        return kicked


class _Climber:
    """Where the search stands.

    Attributes:
        device: `[T]`.
        sums: `[D, L]`.
        own_ms: `[D]` compute and own communication.
        rates: `[D, R+1]` milliseconds per unit of a table's work and width.
        work: `[T, R+1]`.
        used: `[D]` bytes.
        overall_ms: predicted.
    """

    def __init__(
        self, costs: ShardCosts, latents: Array, table_bytes: Indices, capacity: int, device: Indices, num_devices: int
    ) -> None:
        self.costs, self.latents, self.table_bytes, self.capacity = costs, latents, table_bytes, capacity
        self.device, self.num_devices = device.copy(), num_devices
        loads = costs.empty(1, num_devices)
        self.sums = loads.sums[0]
        np.add.at(self.sums, device, latents)
        self.used = np.bincount(device, weights=table_bytes, minlength=num_devices).astype(np.int64)
        self.empty_ms = loads.compute_ms[0, 0]
        self.table_width = costs.table_width(latents)
        self.compute_ms, rates = self._compute(self.sums)
        self.work = np.concatenate([latents[:, : rates.shape[1]], self.table_width[:, None]], axis=1)
        self.exchange = costs.exchange(self.sums)
        per_width = np.full((num_devices, 1), self.exchange.own_ms_per_width, np.float32)
        self.rates = np.concatenate([rates, per_width], axis=1)
        self._settle()

    def step(self, *, widest: bool) -> bool:
        """Take the best step off the slowest or the widest device; False where none helps."""
        source = int((self.exchange.width if widest else self.own_ms).argmax())
        out, back, to = self._candidates(source, widest)
        if len(out) == 0:
            return False
        change = np.where(back[:, None] >= 0, self.latents[back], np.float32(0)) - self.latents[out]  # [C, L]
        sums = np.concatenate([self.sums[source] + change, self.sums[to] - change])  # [2C, L]
        compute, rates = self._compute(sums)
        half = len(out)
        grown = np.where(back >= 0, self.table_width[back], np.float32(0)) - self.table_width[out]  # [C] on source
        width = np.stack([self.exchange.width[source] + grown, self.exchange.width[to] - grown])  # [2, C]
        shift = np.float32(self.exchange.own_ms_per_width) * grown
        own = compute.reshape(2, half) + np.stack(
            [self.exchange.own_ms[source] + shift, self.exchange.own_ms[to] - shift]
        )
        overall = self._overall(own.max(axis=0), width.max(axis=0), source, to)
        score = overall + self._pair_ms(own.max(axis=0), width.max(axis=0), widest)
        tolerance = _TOLERANCE * self.overall_ms
        if widest:
            relieved = width.max(axis=0) < 0.999 * self.exchange.width[source]
        else:
            relieved = own.max(axis=0) < self.own_ms[source] - tolerance
        better = (overall < self.overall_ms - tolerance) | (relieved & (overall <= self.overall_ms + 0.01 * tolerance))
        if not better.any():
            return False
        best = int(np.where(better, score, np.inf).argmin())
        target = int(to[best])
        self._take(int(out[best]), int(back[best]), source, target)
        for side, touched in ((best, source), (half + best, target)):
            self.sums[touched], self.compute_ms[touched] = sums[side], compute[side]
            self.rates[touched, :-1] = rates[side]
        self._settle()
        return True

    def _settle(self) -> None:
        """Bring what follows from the sums up to date."""
        self.exchange = self.costs.exchange(self.sums)
        self.own_ms = self.compute_ms + self.exchange.own_ms
        self.overall_ms = float(self.own_ms.max() + self.exchange.ms_per_width * self.exchange.width.max())

    def _overall(self, own_ms: Array, width: Array, source: int, to: Indices) -> Array:
        """Overall cost where `source` and `to` become at most `own_ms` and `width`, the others staying."""
        exchange: Exchange = self.exchange
        slow = np.maximum(own_ms, _largest_besides(self.own_ms, source)[to])
        wide = np.maximum(width, _largest_besides(exchange.width, source)[to])
        overall: Array = slow + np.float32(exchange.ms_per_width) * wide
        return overall

    def _pair_ms(self, own_ms: Array, width: Array, widest: bool) -> Array:
        """What decides among steps of equal overall cost: a little of what the two devices are left with."""
        left: Array = np.float32(self.exchange.ms_per_width) * width if widest else own_ms
        return np.float32(_RELIEF) * left

    def _score(self, own_ms: Array, width: Array, source: int, to: Indices, widest: bool) -> Array:
        return self._overall(own_ms, width, source, to) + self._pair_ms(own_ms, width, widest)

    def _candidates(self, source: int, widest: bool) -> tuple[Indices, Indices, Indices]:
        """The most promising moves (`back` is -1) and swaps: table out, table back, and the device it goes to."""
        inside = np.flatnonzero(self.device == source)  # [I]
        everywhere = np.arange(self.num_devices)
        leaves = self.work[inside] @ self.rates[source]  # [I]
        arrives = self.work[inside] @ self.rates.T  # [I, D]
        room = self.capacity - self.used  # [D]
        own, width = self.own_ms, self.exchange.width
        lost = self.table_width[inside][:, None]  # [I, 1]
        moved = self._score(
            np.maximum((own[source] - leaves)[:, None], own + arrives),
            np.maximum(width[source] - lost, width + lost),
            source,
            everywhere,
            widest,
        )  # [I, D]
        moved[self.table_bytes[inside][:, None] > room] = np.inf
        moved[:, source] = np.inf

        frees = np.einsum("tr,tr->t", self.work, self.rates[self.device])  # [T] where it is
        burdens = self.work @ self.rates[source]  # [T] on the source
        swap = self.table_width - lost  # [I, T] on the source
        swapped = self._score(
            np.maximum((own[source] - leaves)[:, None] + burdens, (own[self.device] - frees) + arrives[:, self.device]),
            np.maximum(width[source] + swap, width[self.device] - swap),
            source,
            self.device,
            widest,
        )  # [I, T]
        growth = self.table_bytes[inside][:, None] - self.table_bytes  # [I, T] bytes that the other device gains
        swapped[(growth > room[self.device]) | (-growth > room[source])] = np.inf
        swapped[:, inside] = np.inf

        score = np.concatenate([moved.ravel(), swapped.ravel()])
        count = min(_EXACT, len(score))
        chosen = np.argpartition(score, count - 1)[:count]
        chosen = chosen[np.isfinite(score[chosen])]
        is_move = chosen < moved.size
        rest = np.where(is_move, 0, chosen - moved.size)
        out = inside[np.where(is_move, chosen // self.num_devices, rest // len(self.device))]
        back = np.where(is_move, -1, rest % len(self.device))
        return out, back, np.where(is_move, chosen % self.num_devices, self.device[back])

    def _compute(self, sums: Array) -> tuple[Array, Array]:
        """Compute milliseconds `[N]` and rates `[N, R]`; an empty device costs what the network says it does."""
        forward, backward, rates = self.costs.compute(sums)
        return np.where(np.any(np.abs(sums) > _ROUNDING, axis=1), forward + backward, self.empty_ms), rates

    def _take(self, out: int, back: int, source: int, to: int) -> None:
        self.device[out] = to
        self.used[source] -= self.table_bytes[out]
        self.used[to] += self.table_bytes[out]
        if back >= 0:
            self.device[back] = source
            self.used[source] += self.table_bytes[back]
            self.used[to] -= self.table_bytes[back]


def _largest_besides(values: Array, one: int) -> Array:
    """`[D]` the largest value besides that of `one` and of each device."""
    others = values.copy()
    others[one] = -np.inf
    first = int(others.argmax())
    largest = np.full_like(values, others[first])
    others[first] = -np.inf
    largest[first] = others.max()
    if not np.isfinite(largest[first]):
        largest[first] = 0.0
    largest[~np.isfinite(largest)] = 0.0
    return largest
