"""The public measurements of collectives beside what the curves give for them when they are left out of the fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

from dreamshard.testbeds.accelerators.link_curves import fit_link_curve
from dreamshard.testbeds.accelerators.public_measurements import Operation, collective_times

BAR = 0.15  # largest relative error of a time that was left out of the fit


@dataclass(frozen=True, kw_only=True)
class LinkCheck:
    """A measured collective and its prediction by a curve that has not seen it.

    Attributes:
        without_size_us: by the curve through the other sizes of the same number of GPUs.
        without_count_us: by the curves of the other numbers of GPUs; None but for a number between two measured ones.
    """

    operation: Operation
    gpu: str
    num_gpus: int
    sent_bytes: int
    time_us: float
    without_size_us: float
    without_count_us: float | None

    @property
    def size_error(self) -> float:
        """Relative error without the size, above zero where predicted too high."""
        return self.without_size_us / self.time_us - 1

    @property
    def count_error(self) -> float | None:
        """Relative error without the number of GPUs."""
        return None if self.without_count_us is None else self.without_count_us / self.time_us - 1

    @property
    def most_contradicted(self) -> float:
        """How many times as long the smaller message took in the worst pair with this one; 1 if times only rise."""
        others = collective_times(self.operation)[self.gpu][self.num_gpus].items()
        ratios = [
            time_us / self.time_us if size < self.sent_bytes else self.time_us / time_us for size, time_us in others
        ]
        return max(ratios)


def link_checks() -> tuple[LinkCheck, ...]:
    """Every measured all-to-all of the newest NCCL, by GPU, number of GPUs and bytes."""
    return tuple(check for gpu in sorted(collective_times("all_to_all")) for check in link_checks_of(gpu))


@cache
def link_checks_of(gpu: str, operation: Operation = "all_to_all") -> tuple[LinkCheck, ...]:
    """The measured times of one GPU; none if it was not measured."""
    times = collective_times(operation).get(gpu, {})
    return tuple(
        LinkCheck(
            operation=operation,
            gpu=gpu,
            num_gpus=num_gpus,
            sent_bytes=sent_bytes,
            time_us=time_us,
            without_size_us=_without_size_us(times[num_gpus], sent_bytes),
            without_count_us=_without_count_us(times, num_gpus, sent_bytes),
        )
        for num_gpus in sorted(times)
        for sent_bytes, time_us in sorted(times[num_gpus].items())
    )


def _without_size_us(times_us: Mapping[int, float], sent_bytes: int) -> float:
    others = {size: time_us for size, time_us in times_us.items() if size != sent_bytes}
    return _predict_us({2: others}, 2, sent_bytes)  # one number of GPUs: which one does not matter


def _without_count_us(times_us: Mapping[int, Mapping[int, float]], num_gpus: int, sent_bytes: int) -> float | None:
    others = {count: by_bytes for count, by_bytes in times_us.items() if count != num_gpus}
    if not min(others) < num_gpus < max(others):
        return None
    return _predict_us(others, num_gpus, sent_bytes)


def _predict_us(times_us: Mapping[int, Mapping[int, float]], num_gpus: int, sent_bytes: int) -> float:
    curve = fit_link_curve(times_us, num_gpus)
    return 1e6 * float(curve.seconds(torch.tensor(float(sent_bytes), dtype=torch.float64)))
