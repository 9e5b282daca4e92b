"""How far a preset has been compared with public measurements, in a sentence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dreamshard.testbeds.accelerators.accelerator_spec import AcceleratorSpec
from dreamshard.testbeds.accelerators.measured_kernels import KERNEL, kernel_checks_of
from dreamshard.testbeds.accelerators.measured_links import BAR, link_checks_of
from dreamshard.testbeds.accelerators.specs import SPECS


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How predictions compare with measurements.

    Attributes:
        mean: geometric mean of predicted over measured.
        spread: geometric standard deviation of it; 1 where all ratios are equal.
        lowest, highest: of the ratios.
    """

    count: int
    mean: float
    spread: float
    lowest: float
    highest: float


def agreement(ratios: Sequence[float]) -> Agreement:
    """Of at least one ratio of predicted over measured."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / len(logs)
    variance = sum((log - mean) ** 2 for log in logs) / len(logs)
    return Agreement(
        count=len(logs),
        mean=math.exp(mean),
        spread=math.exp(math.sqrt(variance)),
        lowest=min(ratios),
        highest=max(ratios),
    )


def kernel_agreement(gpu: str, group: str = KERNEL) -> Agreement | None:
    """Of a group of times on a GPU, as the source names it; None if nothing was measured or predicted."""
    ratios = [check.ratio for check in kernel_checks_of(gpu) if check.group == group]
    known = [ratio for ratio in ratios if ratio is not None]
    return agreement(known) if known else None


def checked(spec: AcceleratorSpec) -> str:
    """What public measurements say of the preset: how many there are, and how far predictions are off."""
    if SPECS.get(spec.name) != spec:
        return "own figures, not compared with any measurement"
    return f"{_kernels(spec.name)}; {_links(spec.name)}"


def _kernels(name: str) -> str:
    found = kernel_agreement(name)
    if found is None:
        return "kernels: no public measurement, datasheet figures only"
    return f"kernels: predicted/measured {found.mean:.2f} (spread {found.spread:.2f}) on {found.count} public times"


def _links(name: str) -> str:
    errors = [abs(check.size_error) for check in link_checks_of(name)]
    if not errors:
        return "all-to-all: no public measurement, a share of the datasheet's bandwidth"
    within = sum(error <= BAR for error in errors)
    return f"all-to-all: {within} of {len(errors)} public times within {BAR:.0%} when left out of the fit"
