"""The one protocol of all testbeds, and what a testbed is told when it is made."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dreamshard.costs import CostSample
from dreamshard.formatting import gib
from dreamshard.placement import Placement, device_memory_bytes
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.shard_cache import ShardCache
from dreamshard.workloads.lookups import LookupSource


class MeasurementError(RuntimeError):
    """A placement could not be measured; earlier samples are not affected."""


@dataclass(frozen=True, kw_only=True)
class TestbedSetup:
    """What a testbed may need to know.

    Attributes:
        num_devices: devices of the tasks it will measure.
        batch_size: training samples per pass.
        lookups: gives a table's lookups by name.
        seed: for whatever the testbed draws.
        warmups: passes before the timed ones.
        repeats: timed passes per measurement.
        timeout_s: after which a measurement that has not ended is an error.
        memory_limit_bytes: a shard that asks for more does not fit, whatever the device has; None for no such limit.
        shard_cache: of testbeds that measure shard by shard; None for one that lasts as long as the testbed.
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


@runtime_checkable
class Testbed(Protocol):
    """Anything that can say what a placement costs.

    Attributes:
        name: how cost samples call it, e.g. `cluster`.
        hardware: what ran, e.g. `NVIDIA H200 x8`; a simulated one starts with `simulated`.
        max_devices: the most devices a task may have, or None for any number.
    """

    name: str
    hardware: str
    max_devices: int | None

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """Measure one legal placement; where a shard does not fit its device, the sample says so.

        Raises:
            MeasurementError: a rank died or hung.
            ValueError: the placement is not legal for the task, or the task has more devices than the testbed.
        """
        ...

    def close(self) -> None:
        """End whatever the testbed started."""
        ...


def check_placement(
    task: PlacementTask, placement: Placement, max_devices: int | None
) -> tuple[PlacementTask, Placement]:
    """Refuse what cannot be measured, before anything is started.

    Returns:
        Task and placement in whole tables (`PlacementTask.sharded`): what to measure.

    Raises:
        ValueError: the placement is not legal for the task, or the task has more devices than the testbed.
    """
    if max_devices is not None and task.num_devices > max_devices:
        raise ValueError(
            f"{task.name} has {task.num_devices} devices, but this testbed has {max_devices}, so some shards could not "
            "be measured; ask for fewer devices, or use the testbed `simulated`"
        )
    legal = task.is_legal(placement)
    task, placement = task.sharded(placement)
    if placement.num_devices != task.num_devices or len(placement.device) != len(task.tables):
        raise ValueError(
            f"the placement puts {len(placement.device)} tables on {placement.num_devices} devices, but {task.name} "
            f"has {len(task.tables)} tables and {task.num_devices} devices; measure a placement made for this task"
        )
    if not legal:
        held = device_memory_bytes(task.table_bytes, placement.device[None], task.num_devices)[0]  # [D]
        fullest = int(held.argmax())
        raise ValueError(
            f"the placement puts {gib(int(held[fullest]))} of tables of {task.name} on device {fullest}, "
            f"which has {gib(task.memory_bytes)}, so it would run out of memory; move tables elsewhere"
        )
    return task, placement
