"""Where costs come from: real ranks, or a model of an accelerator."""

from dreamshard.testbeds.base import MeasurementError, Testbed, TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.testbeds.specs import DEFAULT_SPEC, accelerator

__all__ = ["MeasurementError", "Testbed", "TestbedSetup", "open_testbed"]


def open_testbed(name: str, setup: TestbedSetup) -> Testbed:
    """The testbed called `name`: `simulated`, or `simulated:` and an accelerator.

    Raises:
        ValueError: there is none of that name; the message lists those there are.
    """
    kind, _, detail = name.partition(":")
    if kind == "simulated":
        return SimulatedTestbed(setup, accelerator(detail or DEFAULT_SPEC))
    raise ValueError(f"there is no testbed {name!r}; choose one of simulated, simulated:<accelerator>")
