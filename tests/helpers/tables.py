"""Embedding tables and placement tasks built by hand, small enough to check on paper."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Int, Num
from torch import Tensor

from dreamshard.constraints import Constraints
from dreamshard.plan import Plan, PlannedTable
from dreamshard.tables import NUM_BINS, SHARDING_TYPES, Placement, Tables, TableSharding
from dreamshard.tasks import PlacementTask
from dreamshard.workloads.task_sampling import TasksConfig

BATCH = 1024
ROW_BYTES = 16  # of a table with dim 4 in fp32


def tables_of(
    rows: Sequence[int],
    dim: Sequence[int] | int = 4,
    pooling: Sequence[float] | float = 2.0,
    *,
    prefix: str = "t",
    names: Sequence[str] | None = None,
    batch_size: int = BATCH,
    bins: Sequence[Sequence[float]] | None = None,
    lookups: Sequence[int] | None = None,
    unique_rows: Sequence[int] | None = None,
) -> Tables:
    """Tables of these sizes, named `{prefix}0`, `{prefix}1`, ... without `names`; one dim or pooling factor holds for all.

    By default `lookups` are `pooling * batch_size`, and every row of them is looked up twice. `bins` are the first bins.
    """
    count = len(rows)
    hash_size = torch.tensor(rows, dtype=torch.int64)
    factors, dims = torch.as_tensor(pooling, dtype=torch.float64), torch.as_tensor(dim)
    factors, dims = factors.expand(count).clone(), dims.expand(count).clone()
    counted = (factors * batch_size).long() if lookups is None else torch.tensor(lookups)
    halved = torch.minimum(counted // 2, hash_size).clamp(min=1)
    shares = [[*row, *[0.0] * (NUM_BINS - len(row))] for row in bins or [[0.0, 1.0]] * count]
    columns = hash_size, dims, factors, torch.tensor(shares, dtype=torch.float64), counted
    unique = halved if unique_rows is None else torch.tensor(unique_rows)
    return Tables(tuple(names or (f"{prefix}{t}" for t in range(count))), *columns, unique)


def tables_of_dims(dims: Sequence[int], *, rows=1000, pooling=2.0, batch_size=64, names=None) -> Tables:
    """Tables that differ only in dim: table-0, table-1, ... without `names`."""
    return tables_of([rows] * len(dims), dims, pooling, prefix="table-", names=names, batch_size=batch_size)


def task_of(rows: Sequence[int], num_devices: int, room_rows: int, name: str = "task") -> PlacementTask:
    """Tables of dim 4 on devices with room for `room_rows` rows."""
    return PlacementTask(tables_of(rows), num_devices, room_rows * ROW_BYTES, name=name)


def roomy_task(tables: Tables, num_devices: int = 2, memory_bytes: int = 2**40) -> PlacementTask:
    """A task with room for all tables on each device."""
    return PlacementTask(tables, num_devices, memory_bytes)


def pool_of(num_tables: int, seed: int = 0) -> Tables:
    """Varied tables, drawn with `seed`."""
    generator = torch.Generator().manual_seed(seed)
    rows = (10 ** (3 + 3 * torch.rand(num_tables, generator=generator))).long()
    dim = torch.tensor([4, 8, 16, 32, 64])[torch.randint(5, (num_tables,), generator=generator)]
    pooling = (torch.randn(num_tables, generator=generator) + 1.0).exp().clamp(0.05, 60)
    return tables_of(rows.tolist(), dim.tolist(), pooling.tolist(), prefix=f"p{seed}-")


def whole_plan(device: Mapping[str, int], num_devices: int, *, rows: int = 100_000, dim: int = 64) -> str:
    """The text of a plan of whole tables of one size, by name."""
    tables = {
        name: PlannedTable(sharding_type="table_wise", where=(d,), rows=rows, dim=dim) for name, d in device.items()
    }
    return Plan(num_devices=num_devices, placer="old", tables=tables).to_json()


def shard_sums(values: Num[Tensor, "T ..."], device: Int[Tensor, "B T"], num_devices: int) -> Num[Tensor, "B D ..."]:
    """Latents or sizes of tables, summed over those of each device."""
    return torch.nn.functional.one_hot(device, num_devices).to(values.dtype).mT @ values


def sample_tasks(pool, count, size, num_devices, memory_bytes, generator, **config):
    """`count` tasks of `size` tables of a pool."""
    sizes = {"tables_per_task": size, "num_devices": num_devices, "memory_bytes": memory_bytes}
    return TasksConfig(**sizes, **config).sample(pool, count, generator)


def with_table(placement: Placement, table: int, sharding: TableSharding) -> Placement:
    """The placement with another sharding of one table."""
    return replace(placement, tables=(*placement.tables[:table], sharding, *placement.tables[table + 1 :]))


_HALVES = TableSharding("grid_shard", columns=((0, 16), (16, 32)), where=(0, 1))
_ROWS, _COPIES, _WHOLE = (
    TableSharding("row_wise"),
    TableSharding("data_parallel"),
    TableSharding("table_wise", where=(2,)),
)
_CACHED = TableSharding("table_row_wise", where=(1,), cached_share=0.5)
FOUR_DEVICES_ON_TWO_HOSTS = Placement((_ROWS, _COPIES, _HALVES, _WHOLE, _CACHED), 4, 2)
"""A placement of `sharded_task` by every sharding type except by columns alone."""


def sharded_task(**options) -> PlacementTask:
    """Five tables on two hosts of two devices, which may have every sharding type; `options` are other fields of the task."""
    rows, unique_rows, pooling = [100, 10, 33, 7, 1000], [50, 10, 30, 7, 300], [2.0, 1.0, 3.0, 1.0, 4.0]
    tables = tables_of(rows, [16, 8, 32, 4, 8], pooling, names="abcde", batch_size=100, unique_rows=unique_rows)
    options = {"constraints": Constraints(sharding_types=SHARDING_TYPES, caching=True), **options}
    return PlacementTask(tables, 4, 100_000, devices_per_host=2, **options)
