"""Where costs come from: real ranks, one device standing for many, or a model of an accelerator."""

import importlib
import logging
from typing import Any, Literal

import torch

from dreamshard.costs import CostSample
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import MeasurementError, Testbed, TestbedSetup, check_placement
from dreamshard.testbeds.cluster.testbed import ClusterTestbed
from dreamshard.testbeds.emulated import EmulatedTestbed
from dreamshard.testbeds.machine import device_model
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.testbeds.specs import DEFAULT_SPEC, SPECS, accelerator, spec_of

logger = logging.getLogger(__name__)

__all__ = ["MeasurementError", "Testbed", "TestbedSetup", "open_testbed", "testbed_names"]


def testbed_names() -> list[str]:
    """Every name that `open_testbed` knows."""
    presets = [f"{kind}:{name}" for kind in ("simulated", "emulated") for name in SPECS]
    fixed = ["auto", "cluster", "cluster:cpu", "cluster:cuda", "emulated", "simulated"]
    return [*fixed, *presets, "package.module:factory"]


testbed_names.__test__ = False  # type: ignore[attr-defined]  # not a pytest test


def open_testbed(name: str, setup: TestbedSetup) -> Testbed:
    """The testbed called `name`.

    `cluster` is real ranks: on CUDA if the machine has a GPU for each device, else on CPU. `emulated` measures every
    shard on one device, a GPU if there is one, and takes the links from the accelerator named, or from the one that the
    GPU is. `auto` is `cluster` on CUDA if there is a GPU for each device, else `emulated` if there is any, else
    `cluster` on CPU. `simulated` is the paper's accelerator. `package.module:factory` calls the factory with the setup;
    what it returns needs only `measure(task, placement)`. What ran is in `hardware` of the testbed and of every sample.

    Raises:
        ValueError: there is none of that name (the message lists those there are), or what it needs is not there.
    """
    if name == "auto" and 0 < torch.cuda.device_count() < setup.num_devices:
        return _emulated(setup, "")
    if name in ("auto", "cluster"):
        return ClusterTestbed(setup, _device_type(setup.num_devices))
    if name == "cluster:cpu":
        return ClusterTestbed(setup, "cpu")
    if name == "cluster:cuda":
        return ClusterTestbed(setup, "cuda")
    kind, _, detail = name.partition(":")
    if kind == "simulated":
        return SimulatedTestbed(setup, accelerator(detail or DEFAULT_SPEC))
    if kind == "emulated":
        return _emulated(setup, detail)
    if detail and kind not in ("auto", "cluster"):
        return _own_testbed(name, setup)
    raise ValueError(f"there is no testbed {name!r}, so nothing can be measured; choose one of {testbed_names()}")


def _device_type(num_devices: int) -> Literal["cpu", "cuda"]:
    """`cuda` if there is a GPU for each device, else `cpu`; says so where GPUs are left unused."""
    num_gpus = torch.cuda.device_count()
    if 0 < num_gpus < num_devices:
        logger.warning(
            "this machine has %d GPUs for %d devices, so costs are measured on its CPU, one rank per device; they say "
            "little of GPUs. Ask for at most %d devices to measure on CUDA",
            num_gpus,
            num_devices,
            num_gpus,
        )
    return "cuda" if num_gpus >= num_devices else "cpu"


def _emulated(setup: TestbedSetup, target: str) -> EmulatedTestbed:
    """One device for all; the links of `target`, of the GPU's own kind, or of the default preset."""
    device_type: Literal["cpu", "cuda"] = "cuda" if torch.cuda.device_count() else "cpu"
    spec = accelerator(target) if target else spec_of(device_model(device_type))
    bed = EmulatedTestbed(setup, device_type, spec)
    if device_type == "cpu":
        logger.warning("this machine has no GPU, so shards are measured on its CPU; their costs say little of GPUs")
    return bed


class _OwnTestbed:
    """A person's own testbed, with what it need not say itself."""

    def __init__(self, name: str, inner: Any) -> None:
        self.name: str = getattr(inner, "name", name)
        self.hardware: str = getattr(inner, "hardware", name)
        self.max_devices: int | None = getattr(inner, "max_devices", None)
        self._inner = inner

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """Measure one legal placement; see `Testbed`."""
        task, placement = check_placement(task, placement, self.max_devices)
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
            f"testbed {name!r} cannot be opened, because there is no module {error.name!r}; put it on PYTHONPATH, or "
            f"choose one of {testbed_names()}"
        ) from error
    if not hasattr(module, factory_name):
        raise ValueError(
            f"testbed {name!r} cannot be opened, because module {module_name!r} has no {factory_name!r}; name a "
            "function that takes a TestbedSetup"
        )
    inner = getattr(module, factory_name)(setup)
    if not callable(getattr(inner, "measure", None)):
        raise ValueError(
            f"testbed {name!r} made a {type(inner).__name__} without measure(task, placement), so it cannot measure; "
            "give it that method"
        )
    return _OwnTestbed(name, inner)
