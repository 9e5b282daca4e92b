"""Shards measured before, so that none is measured twice.

Defines when two measurements of a shard are the same, and the protocol of caches. `storage` has a cache in the lake;
the default one lives as long as its testbed.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol, runtime_checkable

from dreamshard.files.digests import json_digest
from dreamshard.tables import Optimizer, Precision


@dataclass(frozen=True, kw_only=True)
class ShardKey:
    """Everything that a shard's compute cost depends on.

    Attributes:
        tables: `dataset_version` of its tables: names, sizes and lookup statistics.
        hardware: model of the device.
        versions: library name to version.
        batch_size: training samples per pass.
    """

    tables: str
    hardware: str
    versions: Mapping[str, str]
    precision: Precision
    optimizer: Optimizer
    batch_size: int

    @property
    def content(self) -> str:
        """Sixteen hexadecimal digits that identify the key."""
        return json_digest(asdict(self), sort_keys=True, default=dict)


@dataclass(frozen=True, kw_only=True)
class ShardTiming:
    """The compute cost of one shard on one device.

    Attributes:
        forward_ms: median over the repeats.
        backward_ms: median over the repeats.
        spread_ms: interquartile range of their sum.
        repeats: timed passes.
        clock: `thread_cpu` or `cuda_event`.
        memory_bytes: of weights and optimizer state.
    """

    forward_ms: float
    backward_ms: float
    spread_ms: float
    repeats: int
    clock: str
    num_tables: int
    sum_dim: int
    memory_bytes: int


@runtime_checkable
class ShardCache(Protocol):
    """Keeps timings of shards by key."""

    def get(self, key: ShardKey) -> ShardTiming | None:
        """The timing with the most repeats under `key`, or None."""
        ...

    def put(self, key: ShardKey, costs: ShardTiming) -> None:
        """Keep a timing; keeping it again changes nothing."""
        ...


@dataclass
class MemoryShardCache:
    """A `ShardCache` that lasts as long as the object."""

    timings: dict[str, ShardTiming] = field(default_factory=dict)

    def get(self, key: ShardKey) -> ShardTiming | None:
        """See `ShardCache`."""
        return self.timings.get(key.content)

    def put(self, key: ShardKey, costs: ShardTiming) -> None:
        """See `ShardCache`."""
        before = self.timings.get(key.content)
        if before is None or before.repeats < costs.repeats:
            self.timings[key.content] = costs
