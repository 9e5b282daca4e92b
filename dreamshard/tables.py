"""Tables to be placed, and how a placement shards each, in TorchRec's words, and on which devices.

table_wise      whole, on one device
column_wise     ranges of columns, each on one device
row_wise        a block of rows on every device
table_row_wise  a block of rows on every device of one host
grid_shard      ranges of columns, each with a block of rows on every device of one host
data_parallel   a copy on every device, each for its own samples
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pydantic
import torch
from jaxtyping import Float, Int
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from torch import Tensor

from dreamshard.files import MOST_COLUMNS, MOST_ROWS, shown

NUM_BINS = 17
"""Access-count bins: (0,1], (1,2], (2,4], ... (16384,32768], (32768, inf)."""

ROW_BLOCKS = 64
"""Equal blocks of a table's rows, in the order of their ids, by which lookups are counted."""

Precision = Literal["fp32", "fp16", "bf16", "int8"]
Optimizer = Literal[
    "sgd", "rowwise_adagrad", "adagrad", "adam", "lamb", "partial_rowwise_adam", "partial_rowwise_lamb", "lars_sgd"
]

DIM_MULTIPLE = 4
"""The fused operator takes tables and column shards whose numbers of columns are multiples of this."""

WIDEST_SHARD = 1024
"""Columns of a shard; fbgemm's kernels for GPUs look up wider rows as zeros (torchrec 3673), so wider tables are split."""

DEFAULT_BATCH = 65_536
"""Training samples per step of GPUs by default: the batch of Meta's published datasets."""

BYTES_PER_WEIGHT: dict[Precision, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
INT8_ROW_BYTES = 8
"""Besides the weights: scale and bias of a quantised row."""

# Optimizer state as fbgemm keeps it: fp32, one or two moments per weight, of which a partial row-wise one is per row
_ROWWISE = ("rowwise_adagrad", "partial_rowwise_adam", "partial_rowwise_lamb")
_MOMENTS = {"adagrad": 1, "adam": 2, "lamb": 2, "partial_rowwise_adam": 1, "partial_rowwise_lamb": 1, "lars_sgd": 1}
BYTES_PER_ROW_STATE: dict[Optimizer, int] = {name: 4 * (name in _ROWWISE) for name in get_args(Optimizer)}
BYTES_PER_ELEMENT_STATE: dict[Optimizer, int] = {name: 4 * _MOMENTS.get(name, 0) for name in get_args(Optimizer)}


@dataclass(frozen=True)
class Tables:
    """Embedding tables; index `t` names the same table in every field.

    `lookups`, `unique_rows` and `bins` describe one batch of `lookups / pooling_factor` training samples.

    Attributes:
        names: `T`, unique unless these are shards.
        rows: `[T]` hash size, at least 1.
        dim: `[T]` embedding dimension, a multiple of 4.
        pooling_factor: `[T]` mean lookups per sample; 0 for an unused table.
        bins: `[T, 17]` share of the distinct rows that the batch looks up (0,1], (1,2], (2,4] ... times.
        lookups: `[T]` lookups in the batch.
        unique_rows: `[T]` distinct rows looked up in the batch.
        poolings: `[T]` pooled vectors that a sample gets; 0 for sequences, of which it gets a vector per lookup.
        block_share: `[T, 64]` share of the lookups in each of `ROW_BLOCKS`, equal if unknown; None if all are.
        first_column: `[T]` in the table of that name, if these are shards of `dim` columns; None if all are whole.

    >>> task.tables.select([1]).names
    ('item',)
    """

    names: tuple[str, ...]
    rows: Int[Tensor, " T"]
    dim: Int[Tensor, " T"]
    pooling_factor: Float[Tensor, " T"]
    bins: Float[Tensor, "T 17"]
    lookups: Int[Tensor, " T"]
    unique_rows: Int[Tensor, " T"]
    poolings: Float[Tensor, " T"] = None  # type: ignore[assignment]  # 1 each
    block_share: Float[Tensor, "T 64"] | None = None
    first_column: Int[Tensor, " T"] | None = None

    def __post_init__(self) -> None:
        if self.poolings is None:
            object.__setattr__(self, "poolings", torch.ones(len(self.names), dtype=torch.float64))
        if self.first_column is None and len(set(self.names)) < len(self):
            repeated = [name for name, count in Counter(self.names).items() if count > 1]
            raise ValueError(f"table names {shown(repeated)} occur more than once; rename them")
        rows, dim, pooling = self.rows.numpy(), self.dim.numpy(), self.pooling_factor.numpy()
        problems = {
            "fewer than 1 row; give the hash size": rows < 1,
            f"dims that are no positive multiples of {DIM_MULTIPLE}, which the fused operator requires; pad them": (
                (dim < 1) | (dim % DIM_MULTIPLE != 0)
            ),
            "pooling factors that are negative or not finite; correct them": ~((pooling >= 0) & (pooling < np.inf)),
        }
        for problem, is_wrong in problems.items():
            if is_wrong.any():
                names = [self.names[t] for t in is_wrong.nonzero()[0]]
                raise ValueError(f"tables {shown(names)} have {problem}")

    def __len__(self) -> int:
        return len(self.names)

    def select(self, index: Sequence[int] | Int[Tensor, " S"]) -> "Tables":
        """The tables at `index`, in that order."""
        positions = torch.as_tensor(index, dtype=torch.int64)
        return Tables(tuple(self.names[t] for t in positions.tolist()), **self.columns(positions))

    def named(self, names: Sequence[str], ranges: Sequence[Sequence[int]] | None = None) -> "Tables":
        """The tables called `names`, in that order, or shards of them: first and last (exclusive) column of each."""
        position = {name: t for t, name in enumerate(self.names)}
        if missing := [name for name in names if name not in position]:
            raise ValueError(
                f"tables {missing[:5]} are not among the {len(self)} tables of this pool; ingest them first, or use the "
                "dataset version that holds them"
            )
        columns = self.columns(torch.tensor([position[name] for name in names], dtype=torch.int64))
        if ranges is not None:
            first, last = torch.tensor(ranges).T
            columns |= {"dim": last - first, "first_column": first}
        return Tables(tuple(names), **columns)

    @property
    def column_ranges(self) -> Int[Tensor, "T 2"]:
        """`[T, 2]` first and last (exclusive) column, counted in the table of that name."""
        first = torch.zeros_like(self.dim) if self.first_column is None else self.first_column
        return torch.stack([first, first + self.dim], dim=1)

    @property
    def batch_size(self) -> int:
        """Samples of the batch in which lookups were counted, by the table that is looked up most."""
        busiest = int(self.pooling_factor.argmax())
        return max(1, round(int(self.lookups[busiest]) / max(float(self.pooling_factor[busiest]), 1e-9)))

    @property
    def sizes(self) -> list[tuple[str, int, int]]:
        """`T` names with rows and columns."""
        return list(zip(self.names, self.rows.tolist(), self.dim.tolist(), strict=True))

    @property
    def labels(self) -> list[str]:
        """`T` names for people; several shards of one table are called `name[first:last]`."""
        count, parts = Counter(self.names), zip(self.names, self.column_ranges.tolist(), strict=True)
        return [f"{name}[{first}:{last}]" if count[name] > 1 else name for name, (first, last) in parts]

    @property
    def vectors(self) -> Float[Tensor, " T"]:
        """`[T]` vectors that a sample gets of a table."""
        return self.poolings.where(self.poolings > 0, self.pooling_factor.double())

    @property
    def sent_dim(self) -> Int[Tensor, " T"]:
        """`[T]` columns of all vectors that a sample gets of a table."""
        return (self.dim * self.vectors).round().long()

    def shares_of(self, table: Int[Tensor, " S"], rows: Int[Tensor, "S 2"]) -> Float[Tensor, "2 S"]:
        """Shares of the lookups, and of the distinct rows, of ranges of rows; within a block both are even.

        A block's distinct rows are in proportion to those that as many random lookups of its rows would find.
        """
        even = torch.diff(rows)[:, 0] / self.rows[table]
        if self.block_share is None:
            return even.expand(2, -1)
        share = self.block_share.double()
        distinct = 1 - (-share * (ROW_BLOCKS * self.lookups / self.rows)[:, None]).exp()
        shares = torch.stack([share, distinct])
        shares /= shares.sum(dim=2, keepdim=True).clamp(min=1e-12)
        below = torch.nn.functional.pad(shares.cumsum(dim=2), (1, 0))  # [2, T, 65]
        at = rows * ROW_BLOCKS / self.rows[table][:, None].double()  # [S, 2]
        block = at.long().clamp(max=ROW_BLOCKS - 1)
        ends = below[:, table[:, None], block].lerp(below[:, table[:, None], block + 1], at - block)  # [2, S, 2]
        return torch.diff(ends)[..., 0]

    def columns(self, index: Int[Tensor, " S"]) -> dict[str, Tensor]:
        """Every known field but the names, for the tables at `index`; an index may repeat."""
        known = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        return {name: values[index] for name, values in known.items() if values is not None}


def padded_dim(dim: int) -> int:
    """The next number of columns that the fused operator takes."""
    return -(-dim // DIM_MULTIPLE) * DIM_MULTIPLE


def concatenate(parts: Sequence[Tables]) -> Tables:
    """All tables of `parts`, which are whole, in order."""
    shares = [row for part in parts for row in ([None] * len(part) if part.block_share is None else part.block_share)]
    columns = {field.name: torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Tables)[1:-2]}
    return Tables(tuple(name for part in parts for name in part.names), **columns, block_share=block_shares(shares))


def block_shares(shares: Sequence[Sequence[float] | Float[Tensor, " K"] | None]) -> Float[Tensor, "T 64"] | None:
    """`Tables.block_share` by the share of the lookups in each of any number of equal blocks; None for a table without."""
    if all(share is None for share in shares):
        return None
    blocks = np.full((len(shares), ROW_BLOCKS), 1 / ROW_BLOCKS)
    for t, share in enumerate(shares):
        if share is None:
            continue
        if len(share) != ROW_BLOCKS:
            edges = np.linspace(0, len(share), ROW_BLOCKS + 1)
            share = np.diff(np.interp(edges, range(len(share) + 1), np.append(0, np.cumsum(np.asarray(share)))))
        blocks[t] = share
    return torch.from_numpy(blocks).float()


def _adding_up(bins: tuple[float, ...]) -> tuple[float, ...]:
    if sum(bins) > 0 and abs(sum(bins) - 1) > 0.01:
        raise ValueError(f"shares of distinct rows in bins, or lookups in blocks, add up to {sum(bins):.4g}, not to 1")
    return bins


Pooling = Literal["sum", "mean", "none"]
"""How a sample's vectors become one; `none` keeps each, as for sequences."""
_OUTPUTS = {"pooled": "sum", "sequence": "none"}

Rows = Annotated[int, Field(ge=1, le=MOST_ROWS)]
Dim = Annotated[int, Field(ge=1, le=MOST_COLUMNS)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**40)]
Bins = Annotated[tuple[Number, ...], Field(min_length=NUM_BINS, max_length=NUM_BINS), AfterValidator(_adding_up)]
_JOINED = BeforeValidator(lambda value: value.split("+") if isinstance(value, str) else value)
Features = Annotated[tuple[str, ...], _JOINED]
BlockShare = Annotated[tuple[Number, ...], Field(min_length=1), _JOINED, AfterValidator(_adding_up)]
_AS_PRINTED = BeforeValidator(lambda value: value.rpartition(".")[2].lower() if isinstance(value, str) else value)
"""TorchRec prints values as `FP16` or `DataType.FP16`."""


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(coerce_numbers_to_str=True, str_strip_whitespace=True))
class ModelTable:
    """One table of a list or a model; None for unknown lookups.

    Attributes:
        name: in the model, unique within its module.
        dim: need not be a multiple of 4.
        pooling_factor: this, `lookups`, `unique_rows` and `bins` are as in `Tables`.
        features: names of the features that look it up.
        module_path: of its collection within the model, as in `named_modules`; empty for the model itself.
        precision: type of the weights.
        is_weighted: whether its lookups have weights.
        optimizer: fused into the backward pass; None if the model does not say.
        num_poolings: pooled vectors per sample; None for one per feature.
        block_share: of the lookups, in each of any number of equal blocks of rows (`0.7+0.2+0.1` in CSV).
        module_class: of the module that holds it, with its package; empty if unknown.
    """

    name: Annotated[str, Field(min_length=1)]
    rows: Rows
    dim: Dim
    pooling_factor: Annotated[Number, Field(le=1e6)] | None = None
    lookups: Count | None = None
    unique_rows: Count | None = None
    bins: Bins | None = None
    features: Features = ()
    module_path: str = ""
    precision: Annotated[Precision, _AS_PRINTED] = "fp32"
    pooling: Annotated[Pooling, _AS_PRINTED, BeforeValidator(lambda value: _OUTPUTS.get(value, value))] = "sum"
    is_weighted: bool = False
    optimizer: Annotated[Optimizer, _AS_PRINTED] | None = None
    module_class: str = ""
    num_poolings: Annotated[float, Field(gt=0, le=1e6)] | None = None
    block_share: BlockShare | None = None

    @property
    def path(self) -> str:
        """Module path and name."""
        return f"{self.module_path}.{self.name}" if self.module_path else self.name

    @property
    def poolings(self) -> float:
        """As in `Tables`."""
        pooled = float(max(1, len(self.features))) if self.num_poolings is None else self.num_poolings
        return 0.0 if self.pooling == "none" else pooled


ShardingType = Literal["table_wise", "column_wise", "row_wise", "table_row_wise", "grid_shard", "data_parallel"]
SHARDING_TYPES: tuple[ShardingType, ...] = get_args(ShardingType)

ON_ONE_DEVICE: tuple[ShardingType, ...] = ("table_wise", "column_wise")
ON_ONE_HOST: tuple[ShardingType, ...] = ("table_row_wise", "grid_shard")
ON_EVERY_DEVICE: tuple[ShardingType, ...] = ("row_wise", "data_parallel")
SPLIT_BY_COLUMNS: tuple[ShardingType, ...] = ("column_wise", "grid_shard")

Columns = tuple[tuple[int, int], ...]
"""First and last (exclusive) column of each range."""

Block = tuple[int, tuple[int, int], tuple[int, int]]
"""Device, first and last (exclusive) row, first and last column of a shard."""


@dataclass(frozen=True)
class TableSharding:
    """How one table is sharded, and where.

    Attributes:
        sharding_type: by TorchRec's name.
        columns: ranges of a column-wise or grid-sharded table, in order; empty for other types.
        where: device of each range, or host for `ON_ONE_HOST`; empty for a table on every device.
        cached_share: share of the rows that the device caches of a table in host memory; None in device memory.

    >>> ds.TableSharding("column_wise", columns=((0, 64), (64, 128)), where=(0, 3)).ranges(128)
    ((0, 64), (64, 128))
    """

    sharding_type: ShardingType
    columns: Columns = ()
    where: tuple[int, ...] = ()
    cached_share: float | None = None

    def __post_init__(self) -> None:
        ends, share = [0, *(end for _, end in self.columns)], self.cached_share
        places = 0 if self.sharding_type in ON_EVERY_DEVICE else max(len(self.columns), 1)
        problem = ""
        if [start for start, _ in self.columns] != ends[:-1] or any(a >= b for a, b in pairwise(ends)):
            problem = "ranges of columns follow one another from 0, so that each column is held once"
        elif bool(self.columns) != (self.sharding_type in SPLIT_BY_COLUMNS):
            problem = f"{' and '.join(SPLIT_BY_COLUMNS)} tables have ranges of columns, and no others"
        elif len(self.where) != places:
            problem = f"give {places} places"
        elif share is not None and (not 0 < share <= 1 or self.sharding_type == "data_parallel"):
            problem = f"a cached share is in (0, 1], not {share}, and copies have none"
        if problem:
            raise ValueError(f"{self.sharding_type} with columns {self.columns} at {self.where}: {problem}")

    @classmethod
    def by_columns(cls, columns: Columns, where: Sequence[int]) -> "TableSharding":
        """Column-wise, each range on one device; table-wise if there is one range."""
        if len(columns) == 1:
            return cls("table_wise", where=tuple(where))
        return cls("column_wise", columns, tuple(where))

    @property
    def is_by_columns(self) -> bool:
        """Whether it is whole or split by columns, in device memory."""
        return self.sharding_type in ON_ONE_DEVICE and self.cached_share is None

    def ranges(self, dim: int) -> Columns:
        """Ranges of columns of a table of `dim` columns; one range of all if it is not split."""
        return self.columns or ((0, dim),)

    def is_too_wide(self, dim: int) -> bool:
        """Whether a shard of a table of `dim` columns is wider than `WIDEST_SHARD`."""
        return any(end - start > WIDEST_SHARD for start, end in self.ranges(dim))

    def blocks(self, rows: int, dim: int, num_devices: int, devices_per_host: int) -> list[Block]:
        """The shards of a table of this size, range by range of its columns, in TorchRec's order; some may hold no rows."""
        kind = self.sharding_type
        count = num_devices if kind in ON_EVERY_DEVICE else devices_per_host if kind in ON_ONE_HOST else 1
        # as TorchRec cuts them: equal blocks, the last ones smaller or empty
        ends = [min(part * -(-rows // count), rows) for part in range(count + 1)]
        blocks = [(0, rows)] * count if kind == "data_parallel" else list(pairwise(ends))
        return [
            (place * count + part, block, columns)
            for place, columns in zip(self.where or (0,), self.ranges(dim), strict=True)
            for part, block in enumerate(blocks)
        ]


@dataclass(frozen=True)
class Placement:
    """How each table of a task is sharded, and where.

    Attributes:
        tables: one per table of the task, in the task's order.
        num_devices: `D`.
        devices_per_host: devices `0..devices_per_host-1` share the first host, and so on; the last host may have fewer.

    >>> ds.Placement.whole([0, 1, 0], num_devices=2).tables[1]
    TableSharding(sharding_type='table_wise', columns=(), where=(1,), cached_share=None)
    """

    tables: tuple[TableSharding, ...]
    num_devices: int
    devices_per_host: int

    def __post_init__(self) -> None:
        for sharding in {id(table): table for table in self.tables}.values():
            on_host = sharding.sharding_type in ON_ONE_HOST
            if on_host and self.num_devices % self.devices_per_host:
                raise ValueError(
                    f"{sharding.sharding_type} needs hosts of one size, but {self.num_devices} devices do not fill hosts of "
                    f"{self.devices_per_host}; choose another sharding type"
                )
            places, what = (self.num_hosts, "host") if on_host else (self.num_devices, "device")
            if any(not 0 <= place < places for place in sharding.where):
                raise ValueError(f"the placement names {what}s {sharding.where}, but there are {what}s 0..{places - 1}")

    @classmethod
    def whole(cls, device: Int[Tensor, " T"] | Sequence[int], num_devices: int) -> "Placement":
        """Place whole tables on `[T]` devices of one host."""
        numbers = device.tolist() if isinstance(device, Tensor) else device
        on = {d: TableSharding("table_wise", where=(d,)) for d in set(numbers)}
        return cls(tuple(on[d] for d in numbers), num_devices, num_devices)

    @cached_property
    def device(self) -> Int[Tensor, " T"]:
        """`[T]` device of each table; a ValueError says that some are not whole."""
        if not self.is_whole:
            raise ValueError(
                f"tables are sharded {', '.join(sorted(self.sharding_types))}, so they have no one device each; "
                "read `tables`, whose `columns` and `where` say which device has which columns"
            )
        return torch.tensor([sharding.where[0] for sharding in self.tables], dtype=torch.int64)

    @property
    def is_whole(self) -> bool:
        """Whether every table is whole, in the memory of one device."""
        return all(table.is_by_columns and not table.columns for table in self.tables)

    @property
    def num_hosts(self) -> int:
        """`H`."""
        return -(-self.num_devices // self.devices_per_host)

    @property
    def sharding_types(self) -> frozenset[ShardingType]:
        """Sharding types that occur."""
        return frozenset(sharding.sharding_type for sharding in self.tables)

    def on_hosts_of(self, devices_per_host: int | None) -> "Placement":
        """The same on hosts of so many devices, if no table is on one host; None changes nothing."""
        if devices_per_host is None or self.sharding_types & set(ON_ONE_HOST):
            return self
        return replace(self, devices_per_host=min(devices_per_host, self.num_devices))


def even_columns(dim: int, parts: int) -> Columns:
    """About equally wide ranges of columns, each of a multiple of `DIM_MULTIPLE`; at most `most_ranges`."""
    units = dim // DIM_MULTIPLE
    ends = [DIM_MULTIPLE * (units * part // parts) for part in range(parts)] + [dim]
    return tuple(pairwise(ends))


def most_ranges(dim: Any, narrowest: Any = 1) -> Any:
    """The most ranges of `even_columns` of at least `narrowest` columns each, of integers or arrays; at least one."""
    return np.maximum(dim // np.maximum(-(-narrowest // DIM_MULTIPLE) * DIM_MULTIPLE, DIM_MULTIPLE), 1)
