"""The protocol of all testbeds, their setup and capacity."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from dreamshard.costs import CostSample, Exchange, ExchangeSample
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.tables import Placement
from dreamshard.tasks import PlacementTask, Shards, violation
from dreamshard.workloads import LookupSource

DeviceType = Literal["cpu", "cuda"]

TABLES_SHARE = 7 / 8
"""Of an accelerator's memory for tables; the rest is for lookups, pooled vectors and the dense model."""


class MeasurementError(RuntimeError):
    """A placement could not be measured; earlier samples are not affected."""


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """One device of a testbed.

    Attributes:
        kind: a GPU, a rank on the CPU, a model of an accelerator, or unknown for a testbed of one's own.
        memory_bytes: of one device; on the CPU, the machine's shared out; None if unknown.
        spec: figures of the accelerator; None on the CPU, and if it has no preset.
    """

    kind: Literal["gpu", "cpu", "simulated", "unknown"]
    memory_bytes: int | None = None
    spec: AcceleratorSpec | None = None


@dataclass(frozen=True, kw_only=True)
class TestbedSetup:
    """How to measure.

    Attributes:
        num_devices: most devices of a task.
        batch_size: training samples per pass.
        lookups: a batch of each table, by its name.
        seed: of measurement noise.
        timeout_s: time limit of a round.
        max_exchange_devices: most devices of an exchange measured alone, if more than of a task.
    """

    num_devices: int
    batch_size: int
    lookups: LookupSource
    seed: int = 0
    timeout_s: float = 300.0
    max_exchange_devices: int = 0

    @property
    def most_devices(self) -> int:
        """Of a task or an exchange."""
        return max(self.num_devices, self.max_exchange_devices)


@runtime_checkable
class Testbed(Protocol):
    """Anything that measures what a placement costs; a subclass needs a name, hardware and `measure`.

    Attributes:
        name: in cost samples, e.g. `cluster`.
        hardware: e.g. `NVIDIA H200 x8`; starts with `simulated` if computed.
        links: names what connects its devices, however many take part: exchanges of equal links are comparable. None if it
            cannot measure exchanges.

    >>> class Lab(ds.Testbed):
    ...     name, hardware = "lab", "my lab"
    ...     def measure(self, task, placement):
    ...         return ds.CostSample(
    ...             testbed=self.name, hardware=self.hardware, versions={}, clock="model", batch_size=512,
    ...             task=task, placement=placement, costs=ds.DeviceCosts(torch.ones(task.num_devices, 4))
    ...         )
    >>> Lab().measure(task, ds.Placement.whole([0, 1], 2)).overall_ms
    4.0
    """

    name: str
    hardware: str
    links: str | None = None

    @abstractmethod
    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """Measure one legal placement in one short round; the sample is `infeasible` if a shard does not fit its device.

        Raises:
            MeasurementError: a rank died or hung.
            ValueError: the placement is not legal for the task, the task has too many devices, or the testbed cannot shard
                tables that way.
        """

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """Measure one all-to-all of pooled vectors without tables, there and back.

        Raises:
            MeasurementError: a rank died or hung.
            ValueError: the testbed measures no exchanges, or the exchange has too many devices.
        """
        raise ValueError(f"testbed {self.name} measures no exchanges without tables")

    def capacity(self) -> Capacity:
        """Kind and memory of each device of a task."""
        return Capacity(kind="unknown")

    def close(self) -> None:
        """End all processes and free all memory of the testbed."""
        return


def check_placement(task: PlacementTask, placement: Placement) -> Shards:
    """The shards of a placement; raises a ValueError if it is not legal for the task."""
    if problem := violation(task, placement, is_measured=True):
        raise ValueError(
            f"the placement is not legal for {task.name}: {problem}; place its tables as its constraints allow"
        )
    return Shards.of(task, placement)
