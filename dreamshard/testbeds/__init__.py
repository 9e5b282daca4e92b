"""Where costs come from: real ranks, or a model of an accelerator."""

import importlib
from typing import Any

import torch

from dreamshard.costs import CostSample
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import MeasurementError, Testbed, TestbedSetup, check_placement
from dreamshard.testbeds.cluster import ClusterTestbed
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.testbeds.specs import DEFAULT_SPEC, SPECS, accelerator

__all__ = ["MeasurementError", "Testbed", "TestbedSetup", "open_testbed", "testbed_names"]


def testbed_names() -> list[str]:
    """Every name that `open_testbed` knows."""
    presets = [f"simulated:{name}" for name in SPECS]
    return ["auto", "cluster", "cluster:cpu", "cluster:cuda", "simulated", *presets, "package.module:factory"]


testbed_names.__test__ = False  # type: ignore[attr-defined]  # not a pytest test


def open_testbed(name: str, setup: TestbedSetup) -> Testbed:
    """The testbed called `name`.

    `auto` and `cluster` are real ranks: on CUDA if the machine has a GPU for each device, else on CPU, which `hardware`
    of the testbed and of every sample says. `simulated` is the paper's accelerator. `package.module:factory` calls the
    factory with the setup; what it returns needs only `measure(task, placement)`.

    Raises:
        ValueError: there is none of that name (the message lists those there are), or what it needs is not there.
    """
    if name in ("auto", "cluster"):
        return ClusterTestbed(setup, "cuda" if 0 < setup.num_devices <= torch.cuda.device_count() else "cpu")
    if name == "cluster:cpu":
        return ClusterTestbed(setup, "cpu")
    if name == "cluster:cuda":
        return ClusterTestbed(setup, "cuda")
    kind, _, detail = name.partition(":")
    if kind == "simulated":
        return SimulatedTestbed(setup, accelerator(detail or DEFAULT_SPEC))
    if detail and kind not in ("auto", "cluster"):
        return _own_testbed(name, setup)
    raise ValueError(f"there is no testbed {name!r}, so nothing can be measured; choose one of {testbed_names()}")


class _OwnTestbed:
    """A person's own testbed, with what it need not say itself."""

    def __init__(self, name: str, inner: Any) -> None:
        self.name: str = getattr(inner, "name", name)
        self.hardware: str = getattr(inner, "hardware", name)
        self.max_devices: int | None = getattr(inner, "max_devices", None)
        self._inner = inner

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """Measure one legal placement; see `Testbed`."""
        check_placement(task, placement, self.max_devices)
        sample = self._inner.measure(task, placement)
        if not isinstance(sample, CostSample):
            raise MeasurementError(
                f"testbed {self.name!r} returned {type(sample).__name__} for {task.name}, but costs are learnt from "
                "CostSample objects; return one from measure()"
            )
        return sample

    def close(self) -> None:
        """End whatever the testbed started, if it says how."""
        if hasattr(self._inner, "close"):
            self._inner.close()


def _own_testbed(name: str, setup: TestbedSetup) -> Testbed:
    """The testbed that `package.module:factory` makes.

    Raises:
        ValueError: there is no such module or factory, or what it makes cannot measure.
    """
    module_name, _, factory_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"testbed {name!r} cannot be opened, because there is no module {error.name!r}; give package.module:factory "
            f"with the module on PYTHONPATH, or choose one of {testbed_names()}"
        ) from error
    if not hasattr(module, factory_name):
        raise ValueError(
            f"testbed {name!r} cannot be opened, because module {module_name!r} has no {factory_name!r}; name a function "
            "that takes a TestbedSetup"
        )
    inner = getattr(module, factory_name)(setup)
    if not callable(getattr(inner, "measure", None)):
        raise ValueError(
            f"testbed {name!r} made a {type(inner).__name__} without measure(task, placement), so it cannot measure; "
            "give it that method"
        )
    return _OwnTestbed(name, inner)
