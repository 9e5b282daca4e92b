"""Short rounds of measurements at different times; of each placement the least disturbed round counts.

Other users of a machine only ever add time, in bursts of 0.3 to 3 s that slow all ranks by up to 45 %. Passes of one moment
share a burst, so their median does not exclude it; rounds at different times rarely do. The least of a few rounds therefore
estimates the cost on an undisturbed machine. On a recorded series, the least of three rounds varies by 2.0 % and that of five
by 1.5 %, while the median of three varies by 4.0 % and the mean by 4.5 %.

A round counts as a whole, by its slowest device: all its times occurred together.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import TypeVar

import torch

from dreamshard.costs import CostSample, ExchangeSample, feasible, is_simulated

Sample = TypeVar("Sample", CostSample, ExchangeSample)

MOST_ROUNDS = 3
AGREEMENT = 0.04
"""Relative difference of a placement's two lowest rounds up to which they agree."""
BURST = 0.1
"""A round counts as disturbed if it takes longer than its placement's least round by more than this share."""
UNSTEADY = 0.06
"""Difference between two costs of one placement above which a machine counts as unsteady; 0.04 is usual."""


def measure_in_rounds(
    measures: Sequence[Callable[[int], Sample]],
    samples: list[list[Sample]],
    generator: torch.Generator,
    *,
    are_compared: bool = True,
) -> list[list[Sample]]:
    """Measure placements next to each other, in a new random order each round, until the two lowest rounds agree.

    Computed costs need a single round.

    Args:
        measures: measures a placement in the round of this number.
        samples: of each placement, those of its rounds so far, which a resumed run has; new ones are appended. Returned.
        generator: draws the orders.
        are_compared: all get the same number of rounds, until those of all agree, since a further one can only lower a cost.
    """
    for number in range(MOST_ROUNDS):
        for k in torch.randperm(len(samples), generator=generator).tolist():
            if len(samples[k]) <= number and (are_compared or not _agree(samples[k])):
                samples[k].append(measures[k](number))
        if all(map(_agree, samples)):
            break
    return samples


def least(rounds: Iterable[Sample]) -> Sample:
    """The least disturbed round: the one with the lowest cost. A placement fits if it did in any round."""
    return min(rounds, key=lambda sample: sample.overall_ms)


def _agree(rounds: Sequence[Sample]) -> bool:
    if len(rounds) < 2:
        return bool(rounds) and is_simulated(rounds[0].hardware)
    lowest, *others = sorted(sample.overall_ms for sample in rounds)
    return others[0] == lowest or others[0] <= (1 + AGREEMENT) * lowest


@dataclass(frozen=True, kw_only=True)
class Steadiness:
    """How steady a machine was while it measured.

    Attributes:
        rounds: number of rounds of all placements.
        disturbed: share of them that took longer than their placement's least round by more than `BURST`.
        excess: mean share by which rounds took longer than their placement's least one.
        level_ms: mean cost of the reference placement, each time by its least round; None without one.
        spread: coefficient of variation of these; None unless it was measured at least twice.
    """

    rounds: int
    disturbed: float
    excess: float = 0.0
    level_ms: float | None = None
    spread: float | None = None

    @classmethod
    def of(cls, rounds: Iterable[CostSample]) -> "Steadiness":
        """Steadiness over all rounds of a training or evaluation."""
        measured = defaultdict[tuple[bool, Hashable], list[float]](list)
        for sample in feasible(rounds):
            measurement = sample.task.name, sample.placement, sample.repeat
            measured[sample.is_reference, measurement].append(sample.overall_ms)
        excess = [cost / min(costs) - 1 for costs in measured.values() for cost in costs]
        levels = [min(costs) for (is_reference, _), costs in measured.items() if is_reference]
        return cls(
            rounds=len(excess),
            disturbed=fmean(share > BURST for share in excess) if excess else 0.0,
            excess=fmean(excess or [0.0]),
            level_ms=fmean(levels) if levels else None,
            spread=pstdev(levels) / fmean(levels) if len(levels) > 1 else None,
        )

    def noise(self, level: float | None = None) -> float:
        """Share of its cost that a placement may seem to save over itself; 0 on a steady machine.

        It is two spreads of the reference placement, or if unknown the excess of rounds, or its change since the training.

        Args:
            level: cost of the reference placement over its cost in the training; None if it is not known.
        """
        level, varied = level or 1.0, self.excess if self.spread is None else 2 * self.spread
        ratio = max(1 + varied, level, 1 / level)
        return 1 - 1 / ratio if ratio > 1 + UNSTEADY else 0.0
