"""Testbeds measure placements: on real ranks, on one device that stands for many, or on models of an accelerator."""

import logging
import pkgutil
from typing import Any, Literal, TypeVar

import torch

from dreamshard.costs import CostSample, Exchange, ExchangeSample
from dreamshard.hardware.accelerator import DEFAULT_PRESET, PRESETS, hardware, preset_of
from dreamshard.names import SIMULATED
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import (
    MeasurementError,
    Testbed,
    TestbedSetup,
    check_exchange,
    check_placement,
)
from dreamshard.testbeds.cluster.launched import RankSource
from dreamshard.testbeds.cluster.testbed import ClusterTestbed
from dreamshard.testbeds.emulated import EmulatedTestbed
from dreamshard.testbeds.machine import device_model
from dreamshard.testbeds.simulated import SimulatedTestbed

S = TypeVar("S")

logger = logging.getLogger(__name__)

__all__ = [
    "MeasurementError",
    "Testbed",
    "TestbedSetup",
    "open_testbed",
    "testbed_names",
]


def testbed_names() -> list[str]:
    """Every name that `open_testbed` takes."""
    presets = [f"{kind}:{name}" for kind in (SIMULATED, "emulated") for name in PRESETS]
    ray = ["cluster:ray", "cluster:ray:cpu", "cluster:ray:cuda"]
    fixed = ["auto", "cluster", "cluster:cpu", "cluster:cuda", *ray, "emulated", SIMULATED]
    files = [f"{kind}:FILE.yaml" for kind in (SIMULATED, "emulated")]
    return [*fixed, *presets, *files, "package.module:factory"]


testbed_names.__test__ = False  # type: ignore[attr-defined]  # not a pytest test


def open_testbed(name: str, setup: TestbedSetup, launched: RankSource | None = None) -> Testbed:
    """Open the testbed called `name`.

    - `cluster`: real ranks, on CUDA if there are GPUs, else on CPU; `cluster:cpu`, `cluster:cuda`. GPUs for only some of
      the devices are an error, never a reason to measure on CPU.
    - `cluster:ray`: the same ranks as actors of a Ray cluster; `cluster:ray:cpu`, `cluster:ray:cuda`.
    - `emulated`, `emulated:<accelerator>`: measures every shard on one device, a GPU if there is one, with the links of the
      accelerator, by default the GPU's own.
    - `auto`: `cluster` on CUDA if there is a GPU for each device, else `emulated` if there is any, else `cluster` on CPU.
    - `simulated`, `simulated:<accelerator>`: a model, by default of the paper's accelerator.
    - Instead of an accelerator's name, the last two take a file of one's own hardware (docs/hardware.md).
    - `package.module:factory`: calls the factory with the setup; the result needs only `measure(task, placement)`;
      one that has `measure_exchange(exchange)` can measure all-to-alls too.

    Args:
        launched: ranks that torchrun started on one host or many, for `cluster` and `auto`; None to start them here.

    Raises:
        ValueError: the name is unknown (the message lists all), or the testbed cannot run on this machine.
    """
    if launched is not None and name in ("auto", "cluster", "cluster:cpu", "cluster:cuda"):
        return _on_ranks(name, setup, launched)
    if name == "auto" and 0 < torch.cuda.device_count() < setup.num_devices:
        return _emulated(setup, "")
    if name in ("auto", "cluster"):
        return ClusterTestbed(setup, _device_type(setup.num_devices))
    kind, _, detail = name.partition(":")
    if kind == "cluster" and detail in ("cpu", "cuda"):
        return ClusterTestbed(setup, "cpu" if detail == "cpu" else "cuda")
    if kind == "cluster" and detail in ("ray", "ray:cpu", "ray:cuda"):
        from dreamshard.testbeds.cluster.ray_ranks import ray_ranks

        return _on_ranks(name, setup, ray_ranks(setup.most_devices, detail.removeprefix("ray").removeprefix(":")))
    if kind == "simulated":
        return SimulatedTestbed(setup, hardware(detail or DEFAULT_PRESET))
    if kind == "emulated":
        return _emulated(setup, detail)
    if detail and kind not in ("auto", "cluster"):
        return _own_testbed(name, setup)
    raise ValueError(
        f"there is no testbed {name!r}, so nothing can be measured; choose one of {', '.join(testbed_names())}"
    )


def _device_type(num_devices: int) -> Literal["cpu", "cuda"]:
    """`cuda` if there is a GPU for each device, `cpu` if there is none at all.

    Raises:
        ValueError: there are GPUs for some devices only; ranks on the CPU would be no guide to them.
    """
    num_gpus = torch.cuda.device_count()
    if 0 < num_gpus < num_devices:
        raise ValueError(
            f"this machine has {num_gpus} GPUs for {num_devices} devices, so they cannot be measured on it alone; start "
            "ranks on more hosts with torchrun or Ray (docs/many-hosts.md), plan with `emulated` or `simulated`, ask for at "
            f"most {num_gpus} devices, or ask for the CPU with `cluster:cpu`"
        )
    return "cuda" if num_gpus else "cpu"


def _on_ranks(name: str, setup: TestbedSetup, source: RankSource) -> ClusterTestbed:
    """The cluster on ranks that run already, on the devices that the name asks for."""
    kind = name.rpartition(":")[2]
    if kind in ("cpu", "cuda"):
        return ClusterTestbed(setup, "cpu" if kind == "cpu" else "cuda", source)
    return ClusterTestbed(setup, source.layout.device_type(), source)


def _emulated(setup: TestbedSetup, target: str) -> EmulatedTestbed:
    """One device for all, with the links of `target`, else of the GPU's own preset, else of the default one."""
    device_type: Literal["cpu", "cuda"] = "cuda" if torch.cuda.device_count() else "cpu"
    spec = hardware(target) if target else preset_of(device_model(device_type)) or PRESETS[DEFAULT_PRESET]
    testbed = EmulatedTestbed(setup, device_type, spec)
    if device_type == "cpu":
        logger.warning("this machine has no GPU, so shards are measured on its CPU; their costs are no guide to GPUs")
    return testbed


class _OwnTestbed:
    """A user's testbed, with defaults for everything but `measure`."""

    def __init__(self, name: str, inner: Any) -> None:
        self.name: str = getattr(inner, "name", name)
        self.hardware: str = getattr(inner, "hardware", name)
        can_exchange = callable(getattr(inner, "measure_exchange", None))
        self.links: str | None = getattr(inner, "links", self.hardware) if can_exchange else None
        self.max_devices: int | None = getattr(inner, "max_devices", None)
        self.memory_bytes: int | None = getattr(inner, "memory_bytes", None)
        self._inner = inner

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """See `Testbed`; column shards are handed on as tables of their own."""
        shards = check_placement(task, placement, self.max_devices)
        if placement.is_by_columns:
            task, placement = shards.as_task(task), Placement.whole(shards.device, shards.num_devices)
        return self._checked(self._inner.measure(task, placement), CostSample)

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """See `Testbed`."""
        check_exchange(exchange, self.max_devices)
        return self._checked(self._inner.measure_exchange(exchange), ExchangeSample)

    def close(self) -> None:
        """See `Testbed`."""
        if hasattr(self._inner, "close"):
            self._inner.close()

    def _checked(self, sample: object, kind: type[S]) -> S:
        if not isinstance(sample, kind):
            raise MeasurementError(
                f"testbed {self.name!r} gave a {type(sample).__name__} where training needs a {kind.__name__}; return one"
            )
        return sample


def _own_testbed(name: str, setup: TestbedSetup) -> Testbed:
    """The testbed that `package.module:factory` makes.

    Raises:
        ValueError: there is no such module or factory, or its result cannot measure.
    """
    try:
        factory = pkgutil.resolve_name(name)
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        raise ValueError(
            f"testbed {name!r} cannot be opened ({error}); put its module on PYTHONPATH and name a function in it that takes "
            f"a TestbedSetup, or choose one of {testbed_names()}"
        ) from error
    inner = factory(setup)
    if not callable(getattr(inner, "measure", None)):
        raise ValueError(
            f"testbed {name!r} made a {type(inner).__name__} without measure(task, placement), so it cannot measure; "
            "give it that method"
        )
    return _OwnTestbed(name, inner)
