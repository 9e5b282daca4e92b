"""What is known of shards measured before, so that none is measured twice.

Belongs here: what makes two measurements of a shard the same, and the protocol of whoever keeps them. `storage` keeps
them in the lake; the default lasts as long as its testbed.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol, runtime_checkable

from dreamshard.files.digests import json_digest
from dreamshard.tables import Optimizer, Precision, Tables
from dreamshard.workloads.statistics import dataset_version


@dataclass(frozen=True, kw_only=True)
class ShardKey:
    """Everything that a shard's compute cost depends on.

    Attributes:
        tables: content of its tables: names, sizes, and what their lookups say (`dataset_version`).
        hardware: model of the device.
        versions: library name to version.
        precision: of the weights.
        optimizer: fused into backward.
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
        """Sixteen hexadecimal digits that stand for all of it."""
        return json_digest(asdict(self), sort_keys=True, default=dict)


@dataclass(frozen=True, kw_only=True)
class ShardTiming:
    """What one device took for one shard.

    Attributes:
        forward_ms: median over the repeats.
        backward_ms: median over the repeats.
        spread_ms: interquartile range of their sum.
        repeats: timed passes.
        clock: `thread_cpu` or `cuda_event`.
        num_tables: of the shard.
        sum_dim: of the shard.
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
    """Keeps the costs of shards by key."""

    def get(self, key: ShardKey) -> ShardTiming | None:
        """The costs kept under `key`, those of most repeats; None where there are none."""
        ...

    def put(self, key: ShardKey, costs: ShardTiming) -> None:
        """Keep the costs; once is enough."""
        ...


@dataclass
class ShardMemory:
    """A `ShardCache` that lasts as long as the object."""

    known: dict[str, ShardTiming] = field(default_factory=dict)

    def get(self, key: ShardKey) -> ShardTiming | None:
        """See `ShardCache`."""
        return self.known.get(key.content)

    def put(self, key: ShardKey, costs: ShardTiming) -> None:
        """See `ShardCache`."""
        before = self.known.get(key.content)
        if before is None or before.repeats < costs.repeats:
            self.known[key.content] = costs


def shard_key(
    tables: Tables,
    precision: Precision,
    optimizer: Optimizer,
    *,
    hardware: str,
    versions: Mapping[str, str],
    batch_size: int,
) -> ShardKey:
    """The key of a shard of these tables."""
    return ShardKey(
        tables=dataset_version(tables),
        hardware=hardware,
        versions=dict(sorted(versions.items())),
        precision=precision,
        optimizer=optimizer,
        batch_size=batch_size,
    )
