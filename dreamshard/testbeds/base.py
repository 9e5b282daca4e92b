"""The protocol of all testbeds, and their setup."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dreamshard.costs import CostSample, Exchange, ExchangeSample
from dreamshard.placement import Placement
from dreamshard.shards import Shards, violation
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.shard_cache import ShardCache
from dreamshard.workloads import LookupSource


class MeasurementError(RuntimeError):
    """A placement could not be measured; earlier samples are not affected."""


@dataclass(frozen=True, kw_only=True)
class TestbedSetup:
    """How to measure.

    Attributes:
        num_devices: most devices of a task.
        batch_size: training samples per pass.
        lookups: a batch of each table, by its name.
        seed: of measurement noise.
        warmups: passes before the timed ones.
        repeats: timed passes per measurement.
        timeout_s: time limit of a measurement.
        memory_limit_bytes: memory for a shard, if less than the device has; None for all of it.
        shard_cache: for testbeds that measure shard by shard; None for one that lasts as long as the testbed.
        max_exchange_devices: most devices of an exchange by itself; None for as many as of a task.
    """

    num_devices: int
    batch_size: int
    lookups: LookupSource
    seed: int = 0
    warmups: int = 3
    repeats: int = 15
    timeout_s: float = 300.0
    memory_limit_bytes: int | None = None
    shard_cache: ShardCache | None = None
    max_exchange_devices: int | None = None

    @property
    def most_devices(self) -> int:
        """Of a task or an exchange."""
        return max(self.num_devices, self.max_exchange_devices or 0)


@runtime_checkable
class Testbed(Protocol):
    """Anything that measures what a placement costs.

    Attributes:
        name: in cost samples, e.g. `cluster`.
        hardware: e.g. `NVIDIA H200 x8`; starts with `simulated` if computed.
        links: names what connects its devices, however many take part: exchanges of equal links are comparable. None if it
            cannot measure exchanges.
        max_devices: most devices of a task, or None for any number.
    """

    name: str
    hardware: str
    max_devices: int | None

    @property
    def links(self) -> str | None:
        """See above."""
        ...

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """Measure one legal placement; the sample is `infeasible` if a shard does not fit its device.

        Raises:
            MeasurementError: a rank died or hung.
            ValueError: the placement is not legal for the task, the task has too many devices, or the testbed cannot shard
                tables that way.
        """
        ...

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """Measure one all-to-all of pooled vectors without tables, there and back.

        Raises:
            MeasurementError: a rank died or hung.
            ValueError: the exchange has too many devices.
        """
        ...

    def close(self) -> None:
        """End all processes and free all memory of the testbed."""
        ...


def check_exchange(exchange: Exchange, max_devices: int | None) -> None:
    """Check an exchange before anything is started.

    Raises:
        ValueError: it has too many devices.
    """
    if max_devices is not None and exchange.num_devices > max_devices:
        raise ValueError(
            f"an all-to-all of {exchange.num_devices} devices cannot be measured on the {max_devices} of this testbed; ask "
            "for fewer devices, or use the testbed `simulated`"
        )


def check_placement(task: PlacementTask, placement: Placement, max_devices: int | None) -> Shards:
    """Check a placement before anything is started; returns its shards.

    Raises:
        ValueError: the placement is not legal for the task, or the task has too many devices.
    """
    if max_devices is not None and task.num_devices > max_devices:
        raise ValueError(
            f"{task.name} has {task.num_devices} devices, but this testbed has {max_devices}; ask for fewer, or use the "
            "testbed `simulated`"
        )
    if problem := violation(task, placement):
        raise ValueError(
            f"the placement is not legal for {task.name}: {problem}; place the task's tables as its constraints allow, or "
            "change these"
        )
    return Shards.of(task, placement)
