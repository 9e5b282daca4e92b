"""Improve a placement by the predicted cost: move a table off a critical device, or swap it for another.

Critical are the slowest device and the widest one, whose sum of dims governs the all-to-all for all. Moves and swaps are
ranked by their first-order effect (one matrix product), and the most promising are evaluated exactly. A step must lower
the overall cost; or keep it and relieve the critical device without making another one critical, so that devices that tie
are relieved one after another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.cost_model.evaluator import Array, Indices, ShardEvaluator

_EXACT = 24  # steps evaluated exactly before one is taken
_TOLERANCE = 1e-4  # of the overall cost: smaller gains are not worth a step
_RELIEF = 0.05  # weight of the two devices' costs after a step, beside the overall cost
_PERTURBED_TABLES = 4
_ROUNDING = 1e-3  # the most that may remain of a sum once its last table is taken away


@dataclass(frozen=True)
class LocalSearch:
    """Local search among placements of the same tables.

    Attributes:
        evaluator: of the cost network.
        latents: `[T, L]` of the tables.
        table_bytes: `[T]`.
        capacity_bytes: per device.
        num_devices: `D`.
    """

    evaluator: ShardEvaluator
    latents: Float[Tensor, "T L"]
    table_bytes: Int[Tensor, " T"]
    capacity_bytes: int
    num_devices: int

    def improve(
        self, starts: Int[Tensor, "S T"], perturbations: int, out_of_time: Callable[[], bool], seed: int = 0
    ) -> Int[Tensor, " T"]:
        """Improve every start, then repeatedly the best placement after moving a few of its tables at random.

        Args:
            starts: legal placements, the most promising first.
            perturbations: the most random changes of the best placement.
            out_of_time: whether to stop.
            seed: of the random changes.

        Returns:
            A legal placement that is not predicted to cost more than the first start.
        """
        best = self._climb(starts[0].numpy(), out_of_time)
        generator = np.random.default_rng(seed)
        for i in range(1, len(starts) + perturbations):
            if out_of_time():
                break
            device = starts[i].numpy() if i < len(starts) else self._perturbed(best.device, generator)
            if (other := self._climb(device, out_of_time)).overall_ms < best.overall_ms:
                best = other
        return torch.from_numpy(best.device)

    def _climb(self, device: Indices, out_of_time: Callable[[], bool]) -> "_HillClimber":
        """Step until nothing helps; at most `2 D` steps in a row that only relieve a device."""
        climber = _HillClimber(self, device)
        plateau = 0
        while not out_of_time() and plateau <= 2 * self.num_devices:
            before = climber.overall_ms
            if not (climber.step(widest=False) or climber.step(widest=True)):
                break
            plateau = 0 if climber.overall_ms < before * (1 - _TOLERANCE) else plateau + 1
        return climber

    def _perturbed(self, device: Indices, generator: np.random.Generator) -> Indices:
        """A copy with up to `_PERTURBED_TABLES` tables on other devices that have room."""
        perturbed, sizes = device.copy(), self.table_bytes.numpy()
        used = np.bincount(device, weights=sizes, minlength=self.num_devices).astype(np.int64)
        for table in generator.integers(len(device), size=_PERTURBED_TABLES).tolist():
            target = int(generator.integers(self.num_devices))
            if used[target] + sizes[table] <= self.capacity_bytes:
                used[perturbed[table]] -= sizes[table]
                used[target] += sizes[table]
                perturbed[table] = target
        return perturbed


class _Steps(NamedTuple):
    """`C` possible steps off one device.

    Attributes:
        out: `[C]` tables that leave it.
        back: `[C]` tables that it gets instead; -1 for a move.
        target: `[C]` devices that the tables go to.
    """

    out: Indices
    back: Indices
    target: Indices


class _HillClimber:
    """A placement that is improved step by step.

    Attributes:
        device: `[T]`.
        sums: `[D, L]`.
        own_ms: `[D]` compute and own communication.
        rates: `[D, R+1]` milliseconds per unit of a table's work and width.
        work: `[T, R+1]`.
        used: `[D]` bytes.
        overall_ms: predicted.
    """

    def __init__(self, search: LocalSearch, device: Indices) -> None:
        self.evaluator, self.capacity, self.num_devices = search.evaluator, search.capacity_bytes, search.num_devices
        self.latents, self.table_bytes = search.latents.numpy(), search.table_bytes.numpy()
        self.device = device.copy()
        loads = self.evaluator.empty(1, self.num_devices)
        self.sums = loads.sums[0]
        np.add.at(self.sums, device, self.latents)
        self.used = np.bincount(device, weights=self.table_bytes, minlength=self.num_devices).astype(np.int64)
        self.empty_ms = loads.compute_ms[0, 0]
        self.table_width = self.evaluator.table_width(self.latents)
        self.compute_ms, rates = self._compute(self.sums)
        self.work = np.concatenate([self.latents[:, : rates.shape[1]], self.table_width[:, None]], axis=1)
        self._update_costs()
        per_width = np.full((self.num_devices, 1), self.communication.own_ms_per_width, np.float32)
        self.rates = np.concatenate([rates, per_width], axis=1)

    def step(self, *, widest: bool) -> bool:
        """Take the best step off the slowest or the widest device; False where none helps."""
        communication = self.communication
        source = int((communication.width if widest else self.own_ms).argmax())
        steps = self._promising_steps(source, widest)
        count = len(steps.out)
        if count == 0:
            return False
        swapped = steps.back >= 0
        change = np.where(swapped[:, None], self.latents[steps.back], np.float32(0)) - self.latents[steps.out]  # [C, L]
        sums = np.concatenate([self.sums[source] + change, self.sums[steps.target] - change])  # [2C, L]
        compute, rates = self._compute(sums)
        grown = np.where(swapped, self.table_width[steps.back], np.float32(0)) - self.table_width[steps.out]  # [C]
        pair = np.stack([np.full_like(steps.target, source), steps.target])  # [2, C]
        signed = np.stack([grown, -grown])  # [2, C] width that source and target gain
        width = (communication.width[pair] + signed).max(axis=0)  # [C] of the wider of both
        own = communication.own_ms[pair] + np.float32(communication.own_ms_per_width) * signed
        own = (compute.reshape(2, count) + own).max(axis=0)  # [C] of the slower of both
        overall, score = self._costs_after(own, width, source, steps.target, widest)
        tolerance = _TOLERANCE * self.overall_ms
        narrower, faster = width < 0.999 * communication.width[source], own < self.own_ms[source] - tolerance
        relieved = narrower if widest else faster
        better = (overall < self.overall_ms - tolerance) | (relieved & (overall <= self.overall_ms + 0.01 * tolerance))
        if not better.any():
            return False
        best = int(np.where(better, score, np.inf).argmin())
        target = int(steps.target[best])
        self._reassign(int(steps.out[best]), source, target)
        if swapped[best]:
            self._reassign(int(steps.back[best]), target, source)
        for row, touched in ((best, source), (count + best, target)):
            self.sums[touched], self.compute_ms[touched] = sums[row], compute[row]
            self.rates[touched, :-1] = rates[row]
        self._update_costs()
        return True

    def _update_costs(self) -> None:
        """Derive costs from the sums."""
        self.communication = self.evaluator.communication(self.sums)
        self.own_ms = self.compute_ms + self.communication.own_ms
        self.overall_ms = float(self.own_ms.max() + self.communication.ms_per_width * self.communication.width.max())

    def _costs_after(
        self, own_ms: Array, width: Array, source: int, target: Indices, widest: bool
    ) -> tuple[Array, Array]:
        """Overall cost where `source` and `target` become at most `own_ms` and `width`; and a score that orders steps.

        The score adds a small share of the two devices' costs, which decides among steps of equal overall cost.
        """
        ms_per_width = np.float32(self.communication.ms_per_width)
        slowest = np.maximum(own_ms, _largest_of_others(self.own_ms, source)[target])
        largest_width = np.maximum(width, _largest_of_others(self.communication.width, source)[target])
        overall: Array = slowest + ms_per_width * largest_width
        return overall, overall + np.float32(_RELIEF) * (ms_per_width * width if widest else own_ms)

    def _promising_steps(self, source: int, widest: bool) -> _Steps:
        """The moves and swaps off `source` that are best to first order."""
        inside = np.flatnonzero(self.device == source)  # [I]
        leaves = self.work[inside] @ self.rates[source]  # [I] ms that a table takes off the source
        arrives = self.work[inside] @ self.rates.T  # [I, D] ms that it adds elsewhere
        room = self.capacity - self.used  # [D]
        own, width = self.own_ms, self.communication.width
        lost = self.table_width[inside][:, None]  # [I, 1]
        _, moves = self._costs_after(
            np.maximum((own[source] - leaves)[:, None], own + arrives),
            np.maximum(width[source] - lost, width + lost),
            source,
            np.arange(self.num_devices),
            widest,
        )  # [I, D]
        moves[self.table_bytes[inside][:, None] > room] = np.inf
        moves[:, source] = np.inf

        frees = np.einsum("tr,tr->t", self.work, self.rates[self.device])  # [T] ms off the device that holds a table
        returns = self.work @ self.rates[source]  # [T] ms that it adds to the source
        gained = self.table_width - lost  # [I, T] width that the source gains
        _, swaps = self._costs_after(
            np.maximum((own[source] - leaves)[:, None] + returns, (own[self.device] - frees) + arrives[:, self.device]),
            np.maximum(width[source] + gained, width[self.device] - gained),
            source,
            self.device,
            widest,
        )  # [I, T]
        growth = self.table_bytes[inside][:, None] - self.table_bytes  # [I, T] bytes that the other device gains
        swaps[(growth > room[self.device]) | (-growth > room[source])] = np.inf
        swaps[:, inside] = np.inf

        score = np.concatenate([moves.ravel(), swaps.ravel()])
        count = min(_EXACT, len(score))
        chosen = np.argpartition(score, count - 1)[:count]
        chosen = chosen[np.isfinite(score[chosen])]
        is_move = chosen < moves.size
        swap = np.where(is_move, 0, chosen - moves.size)
        out = inside[np.where(is_move, chosen // self.num_devices, swap // len(self.device))]
        back = np.where(is_move, -1, swap % len(self.device))
        return _Steps(out, back, np.where(is_move, chosen % self.num_devices, self.device[back]))

    def _compute(self, sums: Array) -> tuple[Array, Array]:
        """Compute milliseconds `[N]` and rates `[N, R]`, empty devices included."""
        forward, backward, rates = self.evaluator.compute(sums)
        return np.where(np.any(np.abs(sums) > _ROUNDING, axis=1), forward + backward, self.empty_ms), rates

    def _reassign(self, table: int, source: int, target: int) -> None:
        self.device[table] = target
        self.used[source] -= self.table_bytes[table]
        self.used[target] += self.table_bytes[table]


def _largest_of_others(values: Array, excluded: int) -> Array:
    """`[D]` for each device, the largest value besides its own and that of `excluded`; 0 where there is none."""
    others = values.copy()
    others[excluded] = -np.inf
    first = int(others.argmax())
    largest = np.full_like(values, others[first])
    others[first] = -np.inf
    largest[first] = others.max()
    largest[~np.isfinite(largest)] = 0.0
    return largest
