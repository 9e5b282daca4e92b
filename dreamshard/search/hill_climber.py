"""Improve a placement step by step by the predicted cost: move a table off a critical device, or swap it for another.

Critical are the slowest device and the widest one, whose sum of dims governs the all-to-all for all. Moves and swaps are
ranked by their first-order effect (one matrix product), and the most promising are evaluated exactly. A step must lower
the overall cost; or keep it and relieve the critical device without making another one critical, so that devices that tie
are relieved one after another.
"""

from typing import NamedTuple

import numpy as np

from dreamshard.cost_model.evaluator import Array, Indices, ShardEvaluator
from dreamshard.limits import PlacementLimits
from dreamshard.search.background import Background
from dreamshard.search.budget import step_units

TOLERANCE = 1e-4  # of the overall cost: smaller gains are not worth a step
_EXACT = 24  # steps evaluated exactly before one is taken
_RELIEF = 0.05  # weight of the two devices' costs after a step, beside the overall cost
_ROUNDING = 1e-3  # the most that may remain of a sum once its last table is taken away


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


class HillClimber:
    """A placement that is improved step by step.

    Attributes:
        device: `[T]`.
        sums: `[D, L]`.
        own_ms: `[D]` compute, own communication and other collectives.
        rates: `[D, R+1]` milliseconds per unit of a table's work and width.
        work: `[T, R+1]`.
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
        background: Background | None = None,
    ) -> None:
        self.evaluator, self.num_devices, self.limits = evaluator, num_devices, limits
        self.latents, self.table_bytes, self.capacity = latents, table_bytes, capacity_bytes
        self.step_units = step_units(len(table_bytes), num_devices, evaluator.step_units)
        self.device = device.copy()
        loads = self.evaluator.empty(1, self.num_devices)
        self.sums = loads.sums[0]
        np.add.at(self.sums, device, self.latents)
        self.used = np.bincount(device, weights=self.table_bytes, minlength=self.num_devices).astype(np.int64)
        self.other_ms = np.zeros(self.num_devices, np.float32)
        if background is not None:
            self.sums += background.sums
            self.used += background.used_bytes
            self.other_ms = background.own_ms
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
        own = (communication.own_ms + self.other_ms)[pair] + np.float32(communication.own_ms_per_width) * signed
        own = (compute.reshape(2, count) + own).max(axis=0)  # [C] of the slower of both
        overall, score = self._costs_after(own, width, source, steps.target, widest)
        tolerance = TOLERANCE * self.overall_ms
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
        self.own_ms = self.compute_ms + (self.communication.own_ms + self.other_ms)
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
        if not len(inside):
            return _Steps(inside, inside, inside)
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
        if self.limits is not None:
            moves[~self.limits.moves(inside, self.device)] = np.inf

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
        if self.limits is not None:
            swaps[~self.limits.swaps(inside, source, self.device)] = np.inf

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
