"""What ranks measure: an all-to-all, or a rank's part of a placement.

Shards that are exchanged alike are exchanged together: those of one device, row blocks on all devices, row blocks on one
host, and data-parallel copies, which are not exchanged at all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from dreamshard.costs import Exchange
from dreamshard.placement import ON_ONE_DEVICE, ON_ONE_HOST, SHARDING_TYPES
from dreamshard.shards import Shards
from dreamshard.tables import Optimizer, Precision, parent_name
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.operators import DENSE_OPTIMIZERS, RankShard, Route, require_operator

DeviceType = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class ExchangeJob:
    """An all-to-all to measure among `members`; each answers with `[R, 2]` milliseconds, there and back."""

    members: tuple[int, ...]
    exchange: Exchange

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that exchange."""
        return (self.members,)


@dataclass(frozen=True)
class ShardingJob:
    """A rank's part of a placement to measure among `members`.

    It answers with `[R, 5]` milliseconds, of each phase and of the exchange of indices, or with an `Infeasible`.

    Attributes:
        host_members: ranks of this one's host, with which it shares rows of tables; only itself if there are no such tables.
        across_members: ranks with this one's number on their hosts; only itself if there are no such tables.
        device_dims: `D` columns of table- and column-wise shards of each rank.
        everywhere_dims: columns of row-wise tables.
        host_dims: `H` columns of tables on each host.
        copies_dims: columns of data-parallel tables.
        device_bytes: of the rank's shards.
        with_indices: whether the exchange of indices is measured; otherwise it is 0 ms.
    """

    members: tuple[int, ...]
    host_members: tuple[int, ...]
    across_members: tuple[int, ...]
    shards: tuple[RankShard, ...]
    device_dims: tuple[int, ...]
    everywhere_dims: int
    host_dims: tuple[int, ...]
    copies_dims: int
    optimizer: Optimizer
    device_bytes: int
    with_indices: bool = True

    @classmethod
    def each(
        cls, members: Sequence[int], task: PlacementTask, shards: Shards, *, with_indices: bool = True
    ) -> "Iterator[ShardingJob]":
        """The jobs of a placement, in the order of `members`."""
        carried, per_host = shards.collectives(), shards.devices_per_host
        on_hosts = bool((carried.host_dims > 0).any())
        held = rank_shards(task, shards)
        device_bytes = shards.memory_bytes().tolist()
        copies = shards.is_any("data_parallel") & (shards.device == 0)
        for d, member in enumerate(members):
            host = members[d // per_host * per_host : (d // per_host + 1) * per_host]
            yield cls(
                members=tuple(members),
                host_members=tuple(host) if on_hosts else (member,),
                across_members=tuple(members[d % per_host :: per_host]) if on_hosts else (member,),
                shards=tuple(held[d]),
                device_dims=tuple(carried.all_to_all_dims.tolist()),
                everywhere_dims=carried.row_wise_dims,
                host_dims=tuple(carried.host_dims.tolist()),
                copies_dims=int(shards.tables.dim[copies].sum()),
                optimizer=task.optimizer,
                device_bytes=device_bytes[d],
                with_indices=with_indices,
            )

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that exchange: all, those of this rank's host, and those with its number on their hosts."""
        return self.members, self.host_members, self.across_members

    def asked_bytes(self, batch_size: int, rank: int | None = None) -> int:
        """Memory for shards, pooled vectors and gradients; with a rank's number also for what it exchanges, fp32."""
        asked = self.device_bytes + 2 * 4 * batch_size * sum(shard.dim for shard in self.shards)
        if rank is None:
            return asked
        on_host = max(self.host_dims)
        whole = self.device_dims[rank] + self.everywhere_dims + on_host
        own = sum(self.device_dims) + self.everywhere_dims + sum(self.host_dims)
        return asked + 2 * 4 * (2 * whole * batch_size + own * (batch_size // len(self.device_dims) + 1))


Job = ExchangeJob | ShardingJob


def rank_shards(task: PlacementTask, shards: Shards) -> list[list[RankShard]]:
    """The shards of each device, in the order of `shards`."""
    held: list[list[RankShard]] = [[] for _ in range(shards.num_devices)]
    in_host = (shards.host_bytes > 0).tolist()
    fields = (shards.table, shards.device, shards.sharding_type, shards.rows, shards.columns)
    for s, (t, d, kind, rows, columns) in enumerate(zip(*(field.tolist() for field in fields), strict=True)):
        shard = RankShard(
            table=task.tables.names[t],
            table_rows=int(task.tables.rows[t]),
            first_row=rows[0],
            rows=rows[1] - rows[0],
            dim=columns[1] - columns[0],
            route=_route(kind),
            precision=_precision(task, t),
            cached_share=float(shards.cached_share[s]) if in_host[s] else None,
        )
        held[d].append(shard)
    return held


def sample_counts(batch_size: int, num_ranks: int) -> list[int]:
    """Samples of each rank: all have as many, the first ones one more if need be."""
    return [batch_size // num_ranks + (r < batch_size % num_ranks) for r in range(num_ranks)]


def sample_starts(batch_size: int, num_ranks: int) -> list[int]:
    """First sample of each rank, and the batch's size."""
    return list(accumulate(sample_counts(batch_size, num_ranks), initial=0))


def _precision(task: PlacementTask, table: int) -> Precision:
    return task.precision_of.get(parent_name(task.tables.names[table]), task.precision)


def _route(kind: int) -> Route:
    sharding_type = SHARDING_TYPES[kind]
    if sharding_type in ON_ONE_DEVICE:
        return "device"
    if sharding_type in ON_ONE_HOST:
        return "host"
    return "copies" if sharding_type == "data_parallel" else "everywhere"


def require_shards(task: PlacementTask, shards: Shards, device_type: str, per_host: int | None) -> None:
    """Check that ranks, so many per host (None for any number), can build and exchange the shards.

    Raises:
        ValueError: they cannot; the message names the first table or the pair of precision and optimizer.
    """
    in_host, copies = shards.host_bytes > 0, shards.is_any("data_parallel")
    precisions = [_precision(task, t) for t in shards.table.tolist()]
    for precision in set(precisions):
        require_operator(precision, task.optimizer, device_type)
    if device_type == "cpu" and bool(in_host.any()):
        raise ValueError(
            f"{shards.tables.names[int(in_host.int().argmax())]!r} is in host memory with a cache on the device, which only "
            "GPUs have; measure it with cluster:cuda, or use the testbed `simulated`"
        )
    for s in copies.nonzero().flatten().tolist():
        if precisions[s] != "fp32" or task.optimizer not in DENSE_OPTIMIZERS:
            raise ValueError(
                f"{shards.tables.names[s]!r} is data-parallel in {precisions[s]} with {task.optimizer}, but such tables are "
                f"measured in fp32 with {', '.join(DENSE_OPTIMIZERS)}"
            )
    if per_host and bool(shards.is_any(*ON_ONE_HOST).any()) and shards.devices_per_host > per_host:
        raise ValueError(
            f"the placement spreads rows over hosts of {shards.devices_per_host} devices, but the ranks are {per_host} per "
            f"host; place for {per_host} devices per host"
        )
