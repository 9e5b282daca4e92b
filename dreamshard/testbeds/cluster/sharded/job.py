"""What one rank needs to measure a placement of tables that are sharded in any way.

Shards that are exchanged alike are exchanged together, side by side in one matrix: those of one device, row blocks on all
devices, row blocks on one host, and data-parallel copies, which are not exchanged at all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from dreamshard.placement import ON_ONE_DEVICE, ON_ONE_HOST, SHARDING_TYPES
from dreamshard.shards import Shards
from dreamshard.tables import Optimizer, Precision, Tables, parent_name
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.fused_op import require_operator

DENSE_OPTIMIZERS: tuple[Optimizer, ...] = ("sgd", "rowwise_adagrad", "adagrad")
"""Of data-parallel tables."""
Route = Literal["device", "everywhere", "host", "copies"]
"""How pooled vectors reach their samples."""


@dataclass(frozen=True)
class RankShard:
    """A shard on one rank.

    Attributes:
        name: for people.
        table: whose lookups it gets.
        table_rows: of the whole table.
        first_row: of the shard.
        rows: of the shard.
        table_index: number of the table in the task.
        first_column: of the shard.
        dim: columns of the shard.
        offset: first column in the matrix of its route.
        cached_share: share of its rows that the device caches, the table being in host memory; None in device memory.
    """

    name: str
    table: str
    table_rows: int
    first_row: int
    rows: int
    table_index: int
    first_column: int
    dim: int
    route: Route
    offset: int
    precision: Precision
    cached_share: float | None


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

    @property
    def names(self) -> tuple[str, ...]:
        """Of the rank's shards."""
        return tuple(shard.name for shard in self.shards)

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
        """The groups of ranks that it exchanges among."""
        return self.members, self.host_members, self.across_members


def rank_shards(task: PlacementTask, shards: Shards) -> list[list[RankShard]]:
    """The shards of each device, in the order of `shards`."""
    held: list[list[RankShard]] = [[] for _ in range(shards.num_devices)]
    offsets: dict[tuple[Route, int, int, int], int] = {}  # by route, place, table and first column
    widths: dict[tuple[Route, int], int] = {}  # by route and place
    in_host = shards.host_bytes > 0
    for s, (t, d, kind, rows, columns) in enumerate(
        zip(
            shards.table.tolist(),
            shards.device.tolist(),
            shards.sharding_type.tolist(),
            shards.rows.tolist(),
            shards.columns.tolist(),
            strict=True,
        )
    ):
        route = _route(kind)
        place = {"device": d, "host": d // shards.devices_per_host}.get(route, 0)
        dim, key = columns[1] - columns[0], (route, place, t, columns[0])
        if key not in offsets:
            offsets[key] = widths.get((route, place), 0)
            widths[route, place] = offsets[key] + dim
        table = task.tables.names[t]
        held[d].append(
            RankShard(
                name=shards.tables.names[s],
                table=table,
                table_rows=int(task.tables.rows[t]),
                first_row=rows[0],
                rows=rows[1] - rows[0],
                table_index=t,
                first_column=columns[0],
                dim=dim,
                route=route,
                offset=offsets[key],
                precision=task.precision_of.get(parent_name(table), task.precision),
                cached_share=float(shards.cached_share[s]) if bool(in_host[s]) else None,
            )
        )
    return held


def sample_counts(batch_size: int, num_ranks: int) -> list[int]:
    """Samples of each rank: the same, but one more on the first ranks if need be."""
    return [batch_size // num_ranks + (r < batch_size % num_ranks) for r in range(num_ranks)]


def tables_of(shards: Sequence[RankShard]) -> Tables:
    """Shards as tables for the operator, without statistics."""
    count = len(shards)
    return Tables(
        tuple(shard.name for shard in shards),
        rows=torch.tensor([shard.rows for shard in shards]),
        dim=torch.tensor([shard.dim for shard in shards]),
        pooling_factor=torch.zeros(count),
        bins=torch.zeros(count, 17),
        lookups=torch.zeros(count, dtype=torch.int64),
        unique_rows=torch.zeros(count, dtype=torch.int64),
    )


def _route(kind: int) -> Route:
    sharding_type = SHARDING_TYPES[kind]
    if sharding_type in ON_ONE_DEVICE:
        return "device"
    if sharding_type in ON_ONE_HOST:
        return "host"
    return "copies" if sharding_type == "data_parallel" else "everywhere"


def require_shards(task: PlacementTask, shards: Shards, device_type: str) -> None:
    """Check that ranks can build and exchange the shards.

    Args:
        task: with the devices per host that the ranks have.
        shards: of a placement.
        device_type: of the ranks.

    Raises:
        ValueError: they cannot; the message names the first table or the pair of precision and optimizer.
    """
    in_host, copies = shards.host_bytes > 0, shards.is_any("data_parallel")
    precisions = [
        task.precision_of.get(parent_name(task.tables.names[t]), task.precision) for t in shards.table.tolist()
    ]
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
                f"measured in fp32 with {', '.join(DENSE_OPTIMIZERS)}; shard it another way, or use the testbed `simulated`"
            )
    per_host = task.devices_per_host or task.num_devices
    if bool(shards.is_any(*ON_ONE_HOST).any()) and shards.devices_per_host > per_host:
        raise ValueError(
            f"the placement spreads rows over hosts of {shards.devices_per_host} devices, but the ranks are {per_host} per "
            f"host; place for {per_host} devices per host"
        )
