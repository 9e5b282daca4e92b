"""Testbeds for tests: the simulated one, and custom ones such as `tests.helpers.testbeds:by_count`."""

import torch

from dreamshard.hardware.accelerator import PRESETS
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from tests.helpers.samples import sample_of_phases

RTX2080TI = PRESETS["rtx2080ti"]


def simulated(noise: float = 0.01, batch_size: int = 65_536) -> SimulatedTestbed:
    """The simulated testbed, which needs no lookups."""

    def no_lookups(name: str):
        raise AssertionError(f"the simulated testbed asked for the lookups of {name}")

    setup = TestbedSetup(num_devices=2, batch_size=batch_size, lookups=no_lookups)
    return SimulatedTestbed(setup, RTX2080TI, noise)


class ByCount:
    """Costs a millisecond per table in each phase."""

    def __init__(self, setup: TestbedSetup):
        self.batch_size = setup.batch_size

    def measure(self, task, placement):
        counts = torch.bincount(placement.device, minlength=task.num_devices).float()
        phases = counts[:, None].expand(-1, 4)
        return sample_of_phases(task, placement, phases, testbed="own", hardware="abacus", batch_size=self.batch_size)


class WrongAnswer:
    """Answers with a number."""

    def measure(self, task, placement):
        return 1.0


def by_count(setup: TestbedSetup) -> ByCount:
    """A testbed that only measures."""
    return ByCount(setup)


def wrong_answer(setup: TestbedSetup) -> WrongAnswer:
    """A testbed whose measurements are no cost samples."""
    return WrongAnswer()


def not_a_testbed(setup: TestbedSetup) -> object:
    """Something that cannot measure."""
    return object()


def with_exchanges(setup: TestbedSetup) -> SimulatedTestbed:
    """A factory whose testbed measures exchanges as well."""
    return SimulatedTestbed(setup, RTX2080TI)
