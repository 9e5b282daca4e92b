"""What placements cost, for the figures of a sweep: exact costs of the simulator, or measured ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from dreamshard.costs import CostSample
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.accelerator_spec import AcceleratorSpec
from dreamshard.testbeds.base import Testbed, TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed

Placed = tuple[PlacementTask, Placement]
_TIMES = 2  # that each placement is measured


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one placement cost.

    Attributes:
        overall_ms: of the slowest device; the mean of the measurements where there are two.
        compute_ms: largest forward and backward compute of a device, likewise.
        first_ms: overall cost of the earlier measurement; None for an exact cost.
        second_ms: of the later one. The two differ by noise alone.
    """

    overall_ms: float
    compute_ms: float
    first_ms: float | None = None
    second_ms: float | None = None


@runtime_checkable
class Judge(Protocol):
    """Says what placements cost.

    Attributes:
        hardware: whose costs these are.
        is_exact: whether they are without noise.
    """

    hardware: str
    is_exact: bool

    def verdicts(self, placed: Sequence[Placed]) -> list[Verdict | None]:
        """The cost of each legal placement; None for one that did not fit its devices after all."""
        ...


class ExactCosts:
    """Costs of the simulator without noise.

    Args:
        setup: of the testbed on which the systems measured.
        spec: of the accelerator.
    """

    is_exact = True

    def __init__(self, setup: TestbedSetup, spec: AcceleratorSpec) -> None:
        self._testbed = SimulatedTestbed(setup, spec, noise=0.0)
        self.hardware = self._testbed.hardware

    def verdicts(self, placed: Sequence[Placed]) -> list[Verdict | None]:
        """See `Judge`."""
        samples = [self._testbed.measure(task, placement) for task, placement in placed]
        return [Verdict(overall_ms=each.overall_ms, compute_ms=_compute_ms(each)) for each in samples]


class MeasuredCosts:
    """Costs as measured: each placement twice, all in random order, so that drifts of the machine favour no placer.

    Args:
        testbed: stays open.
        seed: of the order.
    """

    is_exact = False

    def __init__(self, testbed: Testbed, seed: int) -> None:
        self._testbed, self._generator = testbed, torch.Generator().manual_seed(seed)
        self.hardware = testbed.hardware

    def verdicts(self, placed: Sequence[Placed]) -> list[Verdict | None]:
        """See `Judge`."""
        samples: list[list[CostSample]] = [[] for _ in placed]
        for position in torch.randperm(_TIMES * len(placed), generator=self._generator).tolist():
            index = position % len(placed)
            samples[index].append(self._testbed.measure(*placed[index]))
        return [_of_both(first, second) for first, second in samples]


def _of_both(first: CostSample, second: CostSample) -> Verdict | None:
    if first.infeasible or second.infeasible:
        return None
    return Verdict(
        overall_ms=(first.overall_ms + second.overall_ms) / 2,
        compute_ms=(_compute_ms(first) + _compute_ms(second)) / 2,
        first_ms=first.overall_ms,
        second_ms=second.overall_ms,
    )


def _compute_ms(sample: CostSample) -> float:
    return float((sample.costs.forward_compute_ms + sample.costs.backward_compute_ms).max())
