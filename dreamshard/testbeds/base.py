"""The protocol of all testbeds, and their setup."""

from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import CostSample, MeasuredStep, ShardingSample
from dreamshard.exchange_sample import Exchange, ExchangeSample
from dreamshard.formatting import gib
from dreamshard.legality import violation
from dreamshard.placed_shards import PlacedShards, placed_shards
from dreamshard.placement import Placement, device_memory_bytes
from dreamshard.sharding import ShardedPlacement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.shard_cache import ShardCache
from dreamshard.workloads.lookups import LookupSource


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
        max_devices: most devices of a task, or None for any number.
    """

    name: str
    hardware: str
    max_devices: int | None

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """Measure one legal placement; the sample is `infeasible` if a shard does not fit its device.

        Raises:
            MeasurementError: a rank died or hung.
            ValueError: the placement is not legal for the task, or the task has too many devices.
        """
        ...

    def close(self) -> None:
        """End all processes and free all memory of the testbed."""
        ...


@runtime_checkable
class ExchangeTestbed(Protocol):
    """A testbed that can also measure an all-to-all by itself.

    Attributes:
        links: names what connects its devices, however many take part: exchanges of equal links are comparable.
    """

    links: str

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """Measure one all-to-all of pooled vectors, there and back.

        Raises:
            MeasurementError: a rank died or hung.
            ValueError: the exchange has too many devices.
        """
        ...


@runtime_checkable
class ShardingTestbed(Protocol):
    """A testbed that can also measure tables sharded in any way."""

    def measure_sharding(self, task: PlacementTask, placement: ShardedPlacement) -> ShardingSample:
        """Measure one legal placement.

        Raises:
            MeasurementError: a rank died or hung.
            ValueError: the placement is not legal for the task, the task has too many devices, or the testbed cannot shard
                tables that way.
        """
        ...


def of_any_sharding(sample: CostSample, placement: ShardedPlacement, index_ms: Float[Tensor, " D"]) -> ShardingSample:
    """The sample of whole tables and column shards as one of tables sharded in any way."""
    shared = {each.name: getattr(sample, each.name) for each in fields(MeasuredStep)}
    return ShardingSample(**shared, placement=placement, index_ms=index_ms)


def of_whole_tables(sample: ShardingSample, placement: Placement) -> CostSample:
    """The sample of a placement of whole tables that was measured as one of tables sharded in any way."""
    shared = {each.name: getattr(sample, each.name) for each in fields(MeasuredStep)}
    return CostSample(**shared, placement=placement)


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


def check_placement(
    task: PlacementTask, placement: Placement, max_devices: int | None
) -> tuple[PlacementTask, Placement]:
    """Check a placement before anything is started.

    Returns:
        Task and placement of whole tables (`PlacementTask.sharded`).

    Raises:
        ValueError: the placement is not legal for the task, or the task has too many devices.
    """
    _check_devices(task, max_devices)
    legal = task.is_legal(placement)
    task, placement = task.sharded(placement)
    if placement.num_devices != task.num_devices or len(placement.device) != len(task.tables):
        raise ValueError(
            f"the placement puts {len(placement.device)} tables on {placement.num_devices} devices, but {task.name} "
            f"has {len(task.tables)} tables and {task.num_devices} devices; measure a placement made for this task"
        )
    if not legal:
        held = device_memory_bytes(task.table_bytes, placement.device[None], task.num_devices)[0]  # [D]
        room = task.capacity_bytes
        fullest = int((held - room).argmax())
        raise ValueError(
            f"the placement puts {gib(int(held[fullest]))} of tables of {task.name} on device {fullest}, "
            f"which has {gib(int(room[fullest]))}, so it would run out of memory; move tables elsewhere"
        )
    return task, placement


def check_sharding(task: PlacementTask, placement: ShardedPlacement, max_devices: int | None) -> PlacedShards:
    """Check a placement of tables that are sharded in any way before anything is started; returns its shards.

    Raises:
        ValueError: the placement is not legal for the task, or the task has too many devices.
    """
    _check_devices(task, max_devices)
    if problem := violation(task, placement):
        raise ValueError(
            f"the placement is not legal for {task.name}, so its cost would be of no use: {problem}; place the task's tables "
            "as its constraints allow, or change these"
        )
    return placed_shards(task, placement)


def _check_devices(task: PlacementTask, max_devices: int | None) -> None:
    if max_devices is not None and task.num_devices > max_devices:
        raise ValueError(
            f"{task.name} has {task.num_devices} devices, but this testbed has {max_devices}, so some shards could not "
            "be measured; ask for fewer devices, or use the testbed `simulated`"
        )
