"""Placement tasks: tables to place on equal devices; a placement as its shards, and whether it is legal; placers."""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dreamshard.constraints import UNCONSTRAINED, Constraints
from dreamshard.files import MOST_DEVICES, gib
from dreamshard.tables import (
    BYTES_PER_ELEMENT_STATE,
    BYTES_PER_ROW_STATE,
    BYTES_PER_WEIGHT,
    INT8_ROW_BYTES,
    ON_ONE_DEVICE,
    ON_ONE_HOST,
    SHARDING_TYPES,
    WIDEST_SHARD,
    Optimizer,
    Placement,
    Precision,
    ShardingType,
    Tables,
    TableSharding,
)

UNCACHED_ROW_BYTES = 4
"""On the device, of a table in host memory: fbgemm's map from each row to its place in the cache, int32."""


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Memory of a training step besides tables, gradients of copies and caches: lookups, and vectors that are exchanged.

    Attributes:
        batch_size: samples per step of all devices; 0 counts nothing.
        lookup_bytes: per lookup of a device's shards: the ids of all batches that are in memory at once.
        cached_lookup_bytes: besides these, per lookup of tables in host memory.
        sent_bytes: per column of the vectors, or partial sums, that a device's shards make for the whole batch.
        received_bytes: per column of the vectors that a device gets of all tables for its own samples.
    """

    batch_size: int = 0
    lookup_bytes: int = 0
    cached_lookup_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True)
class PlacementTask:
    """Tables to place on `num_devices` equal devices.

    Attributes:
        tables: the `T` tables.
        num_devices: `D`.
        memory_bytes: bytes on each device for tables and `activations`.
        optimizer: fused into the backward pass; some keep state per row.
        name: in logs and in the lake.
        devices_per_host: devices `0..devices_per_host-1` share the first host, and so on; None for the hardware's.
        batch_size: training samples per step for which costs are predicted, None for as many as were measured.
        precision_of: of single tables, instead of `precision`.
        constraints: that a placement must respect.
        activations: that count as memory, as in a trainer; none do in training and `dreamshard place`, as in the papers.

    Raises:
        ValueError: there are no tables, a precision or the optimizer is unknown, or the constraints contradict one another;
            placing finds whether the tables fit.

    >>> ds.PlacementTask(task.tables, num_devices=2, memory_bytes=2**30).capacity_bytes.tolist()
    [1073741824, 1073741824]
    """

    tables: Tables
    num_devices: int
    memory_bytes: int
    precision: Precision = "fp32"
    optimizer: Optimizer = "sgd"
    name: str = "task"
    devices_per_host: int | None = None
    batch_size: int | None = None
    precision_of: Mapping[str, Precision] = field(default_factory=dict)
    constraints: Constraints = UNCONSTRAINED
    activations: Activations = Activations()

    def __post_init__(self) -> None:
        if len(self.tables) == 0:
            raise ValueError(f"{self.name} has no tables; give at least one")
        for precision in {self.precision, *self.precision_of.values()} - BYTES_PER_WEIGHT.keys():
            raise ValueError(f"{self.name} has precision {precision!r}; give one of {', '.join(BYTES_PER_WEIGHT)}")
        if self.optimizer not in BYTES_PER_ROW_STATE:
            raise ValueError(
                f"{self.name} has optimizer {self.optimizer!r}; give one of {', '.join(BYTES_PER_ROW_STATE)}"
            )
        for what, count in {"devices": self.num_devices, "devices per host": self.devices_per_host}.items():
            if count is not None and not 1 <= count <= MOST_DEVICES:
                raise ValueError(f"{self.name} has {count} {what}; give 1 to {MOST_DEVICES}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"{self.name} has a batch of {self.batch_size} samples; a step needs at least 1")
        if self.constraints is UNCONSTRAINED:
            return
        if reason := next(self.constraints.contradictions(self.tables.names, self.capacity_bytes.tolist()), ""):
            raise ValueError(f"the constraints of {self.name} cannot be met: {reason}")

    @cached_property
    def weight_bytes(self) -> Int[Tensor, " T"]:
        """`[T]` bytes of one weight."""
        return torch.tensor([BYTES_PER_WEIGHT[precision] for precision in self.precisions])

    @cached_property
    def row_bytes(self) -> Int[Tensor, " T"]:
        """`[T]` bytes per row besides weights and state per weight: quantisation, and the optimizer's state per row."""
        quantisation = torch.tensor([INT8_ROW_BYTES * (precision == "int8") for precision in self.precisions])
        return quantisation + BYTES_PER_ROW_STATE[self.optimizer]

    @cached_property
    def table_bytes(self) -> Int[Tensor, " T"]:
        """`[T]` bytes of each table on a device, whole."""
        stored = self.bytes_of(torch.arange(len(self.tables)), self.tables.rows, self.tables.dim)
        return stored + self.activation_bytes(self.tables.pooling_factor.double(), self.tables.sent_dim)

    def activation_bytes(
        self, lookups: Float[Tensor, " S"], columns: Int[Tensor, " S"], in_host: Bool[Tensor, " S"] | bool = False
    ) -> Int[Tensor, " S"]:
        """Bytes of so many lookups, and of vectors of so many columns, per sample of the whole batch."""
        activations = self.activations
        lookup_bytes = activations.batch_size * (activations.lookup_bytes + activations.cached_lookup_bytes * in_host)
        return (lookups * lookup_bytes).ceil().long() + columns * (activations.batch_size * activations.sent_bytes)

    @property
    def received_bytes(self) -> int:
        """Bytes of the vectors that each device gets for its own samples, wherever the tables are."""
        sizes = self.activations
        return -(-sizes.received_bytes * sizes.batch_size * int(self.tables.sent_dim.sum()) // self.num_devices)

    def bytes_of(
        self, table: Int[Tensor, " S"], rows: Int[Tensor, " S"], columns: Int[Tensor, " S"]
    ) -> Int[Tensor, " S"]:
        """Bytes of weights and state of parts of tables: so many rows and columns of each."""
        element_bytes = self.weight_bytes[table] + BYTES_PER_ELEMENT_STATE[self.optimizer]
        return rows * (columns * element_bytes + self.row_bytes[table])

    @cached_property
    def capacity_bytes(self) -> Int[Tensor, " D"]:
        """`[D]` memory for shards on each device, without the reserve and `received_bytes`."""
        given = self.constraints.memory_bytes_of
        memory = torch.tensor([given.get(device, self.memory_bytes) for device in range(self.num_devices)])
        return (memory - self.constraints.reserve_bytes - self.received_bytes).clamp(min=0)

    @property
    def precisions(self) -> list[Precision]:
        """`[T]` of each table's weights."""
        return [self.precision_of.get(name, self.precision) for name in self.tables.names]


CACHED_ROW_BYTES = 16  # of fbgemm's cache besides a cached row: its index and its time of use, int64 each
GRADIENT_BYTES = 4  # per weight of a data-parallel table: its gradient is dense and fp32


@dataclass(frozen=True)
class Shards:
    """Shards of a task's tables, `S` of them, which need not make up a placement.

    Attributes:
        table: `[S]` number of the task's table; `device` `[S]`.
        sharding_type: `[S]` positions in `SHARDING_TYPES`.
        rows: `[S, 2]` first and last (exclusive) row; `columns` `[S, 2]` the same of columns.
        cached_share: `[S]` share of the rows that the device caches of a table in host memory; NaN in device memory.
        devices_per_host: as in `Placement`.
    """

    task: PlacementTask
    table: Int[Tensor, " S"]
    device: Int[Tensor, " S"]
    sharding_type: Int[Tensor, " S"]
    rows: Int[Tensor, "S 2"]
    columns: Int[Tensor, "S 2"]
    cached_share: Float[Tensor, " S"]
    devices_per_host: int

    @classmethod
    def of(cls, task: PlacementTask, placement: Placement) -> "Shards":
        """The shards of `placement`, table by table, by columns and then by devices."""
        if problem := mismatch(task, placement):
            raise ValueError(f"{problem}; use a placement made for {task.name}")
        return cls.of_tables(task, enumerate(placement.tables), placement.devices_per_host)[0]

    @classmethod
    def of_tables(
        cls, task: PlacementTask, shardings: Iterable[tuple[int, TableSharding]], devices_per_host: int
    ) -> tuple["Shards", Int[Tensor, " S"]]:
        """The shards of tables by number, maybe repeated, and the range of columns of each, counted over all."""
        dims = task.tables.dim.tolist()
        ranges = [
            (t, SHARDING_TYPES.index(sharding.sharding_type), *columns, place, sharding.cached_share or math.nan)
            for t, sharding in shardings
            for columns, place in zip(sharding.ranges(dims[t]), sharding.where or (0,), strict=True)
        ]
        return cls.of_ranges(task, torch.tensor(ranges, dtype=torch.float64).reshape(-1, 6).T, devices_per_host)

    @classmethod
    def of_ranges(
        cls, task: PlacementTask, by_range: Float[Tensor, "6 R"], devices_per_host: int
    ) -> tuple["Shards", Int[Tensor, " S"]]:
        """The shards of ranges of columns, and the range of each.

        Args:
            by_range: table, position in `SHARDING_TYPES`, first and last (exclusive) column, place, cached share or NaN.
        """
        table, kind, start, end, place = by_range[:5].long()
        size = torch.where(_is_any(kind, *ON_ONE_HOST), devices_per_host, task.num_devices)
        counts = torch.where(_is_any(kind, *ON_ONE_DEVICE), 1, size)  # [R] shards of each range
        ranges = torch.repeat_interleave(counts)  # [S] range of each shard
        part = torch.arange(len(ranges)) - (counts.cumsum(0) - counts)[ranges]  # [S] number within the range
        blocks = torch.where(_is_any(kind, "data_parallel"), 1, counts)[ranges]  # [S] of the rows of its table
        rows = task.tables.rows[table[ranges]]
        block = -(-rows // blocks)
        first = torch.minimum(part % blocks * block, rows)
        last = torch.minimum(first + block, rows)
        device = (place * counts)[ranges] + part
        held = first < last  # a table of few rows leaves some devices without any
        ranges = ranges[held]
        ends = torch.stack([first, last], dim=1)[held], torch.stack([start, end], dim=1)[ranges]
        shards = cls(task, table[ranges], device[held], kind[ranges], *ends, by_range[5, ranges], devices_per_host)
        return shards, ranges

    @property
    def num_devices(self) -> int:
        """`D`."""
        return self.task.num_devices

    @cached_property
    def tables(self) -> Tables:
        """Each shard as a table of its device, with its share of the lookups."""
        tables = self.task.tables
        whole = replace(tables, block_share=None).columns(self.table)
        held, dim = self.num_rows, self.num_columns
        is_other = (dim != whole["dim"]) | (held != whole["rows"]) | (self.batch_share < 1)
        if torch.equal(self.table, torch.arange(len(tables))) and not is_other.any():
            return tables
        names = tuple(map(tables.names.__getitem__, self.table.tolist()))
        first = tables.column_ranges[self.table, 0] + self.columns[:, 0]
        share, distinct_share = tables.shares_of(self.table, self.rows)  # [S]
        lookups = (whole["lookups"] * share.double() * self.batch_share.double()).round().long()
        unique_rows = (whole["unique_rows"] * distinct_share.double()).round().long()
        unique_rows = torch.minimum(unique_rows, torch.minimum(held, lookups))
        pooling_factor = (whole["pooling_factor"] * share).to(whole["pooling_factor"].dtype)
        return Tables(
            names, held, dim, pooling_factor, whole["bins"], lookups, unique_rows, whole["poolings"], first_column=first
        )

    @property
    def batch_share(self) -> Float[Tensor, " S"]:
        """`[S]` share of the batch's samples whose lookups a shard gets: 1, or `1 / D` of a data-parallel copy."""
        return torch.where(self.is_any("data_parallel"), 1.0 / self.num_devices, 1.0)

    @property
    def in_host(self) -> Bool[Tensor, " S"]:
        """`[S]` whether a shard is in host memory."""
        return self.cached_share.isfinite()

    @property
    def num_rows(self) -> Int[Tensor, " S"]:
        """`[S]`."""
        return torch.diff(self.rows)[:, 0]

    @property
    def num_columns(self) -> Int[Tensor, " S"]:
        """`[S]`."""
        return torch.diff(self.columns)[:, 0]

    @property
    def stored_bytes(self) -> Int[Tensor, " S"]:
        """`[S]` weights and optimizer state of each shard, in whichever memory."""
        return self.task.bytes_of(self.table, self.num_rows, self.num_columns)

    @cached_property
    def device_bytes(self) -> Int[Tensor, " S"]:
        """`[S]` device memory of each shard, with the task's activations but without `PlacementTask.received_bytes`."""
        rows, dim = self.num_rows, self.num_columns
        per_row = dim * self.task.weight_bytes[self.table] + CACHED_ROW_BYTES
        in_cache = (rows * self.cached_share.float()).nan_to_num().ceil().long() * per_row + rows * UNCACHED_ROW_BYTES
        gradient = self.is_any("data_parallel") * rows * dim * GRADIENT_BYTES
        held = torch.where(self.in_host, in_cache, self.stored_bytes + gradient)
        return held + self.activation_bytes if self.task.activations.batch_size else held

    @property
    def activation_bytes(self) -> Int[Tensor, " S"]:
        """`[S]` lookups and vectors of each shard; a copy's vectors are among the `received_bytes` of its device."""
        # the backward pass makes a copy's gradient before it adds it to the bucket of `DistributedDataParallel`
        lookups, copies = self.tables.pooling_factor.double() * self.batch_share.double(), self.is_any("data_parallel")
        activations = self.task.activation_bytes(lookups, self.tables.sent_dim * ~copies, self.in_host)
        return activations + copies * self.num_rows * self.num_columns * GRADIENT_BYTES

    @property
    def host_bytes(self) -> Int[Tensor, " S"]:
        """`[S]` host memory of each shard."""
        return self.stored_bytes * self.in_host

    def as_task(self) -> PlacementTask:
        """The task with these shards as its tables."""
        return self.task if self.tables is self.task.tables else replace(self.task, tables=self.tables)

    def select(self, which: Int[Tensor, " N"] | Bool[Tensor, " S"]) -> "Shards":
        """Some of the shards."""
        return replace(self, **{field.name: getattr(self, field.name)[which] for field in fields(self)[1:-1]})

    def on(self, device: int) -> "Shards":
        """The shards of one device."""
        return self.select(self.device == device)

    def require_hosts_of(self, devices_per_host: int) -> None:
        """Raise a ValueError if tables are spread over a host and hosts have fewer devices."""
        if self.devices_per_host > devices_per_host and bool(self.is_any(*ON_ONE_HOST).any()):
            raise ValueError(
                f"the placement spreads rows over hosts of {self.devices_per_host} devices, but there are {devices_per_host} "
                f"devices per host; place for {devices_per_host}"
            )

    def is_any(self, *types: ShardingType) -> Bool[Tensor, " S"]:
        """`[S]` whether a shard is of one of these types."""
        return _is_any(self.sharding_type, *types)

    @property
    def in_all_to_all(self) -> Bool[Tensor, " S"]:
        """`[S]` whether an all-to-all sends a shard's vectors as they are: of tables on one device, and of sequences."""
        in_blocks = (self.task.tables.poolings[self.table] == 0) & ~self.is_any("data_parallel")
        return self.is_any(*ON_ONE_DEVICE) | in_blocks

    def per_device(self, values: Shaped[Tensor, "S ..."]) -> Shaped[Tensor, "D ..."]:
        """Sum over the shards of each device."""
        return values.new_zeros(self.num_devices, *values.shape[1:]).index_add_(0, self.device, values)

    @property
    def carried(self) -> Int[Tensor, "D 4"]:
        """`[D, 4]` `traffic` of each device."""
        return self.per_device(self.traffic)

    def memory_bytes(self) -> Int[Tensor, " D"]:
        """Device memory that the shards of each device take, as `device_bytes`."""
        return self.per_device(self.device_bytes)

    @property
    def traffic(self) -> Int[Tensor, "S 4"]:
        """`[S, 4]` what each shard adds to the collectives of a step, which wait for the device that carries most.

        All are fp32 columns per sample of the whole batch, of all vectors that it gets, except copies' bytes:

        - `in_all_to_all`;
        - blocks of pooled row-wise tables: a reduce-scatter of partial sums over all devices;
        - bytes of the gradients of data-parallel copies: an all-reduce in the backward pass;
        - pooled blocks on one host: a reduce-scatter, then an all-to-all between devices of equal number on all hosts.
        """
        dims, gradients = self.tables.sent_dim, GRADIENT_BYTES * self.tables.rows * self.tables.dim
        summed = dims * ~self.in_all_to_all
        rows, copies, hosts = self.is_any("row_wise"), self.is_any("data_parallel"), self.is_any(*ON_ONE_HOST)
        return torch.stack([dims - summed, summed * rows, gradients * copies, summed * hosts], dim=1)


def mismatch(task: PlacementTask, placement: Placement) -> str:
    """How a placement differs from the tables and devices of a task, in one sentence; empty if it is made for it."""
    given, asked = (len(placement.tables), placement.num_devices), (len(task.tables), task.num_devices)
    if given != asked:
        return f"the placement is of {given[0]} tables on {given[1]} devices, not of {asked[0]} on {asked[1]}"
    for name, sharding, dim in zip(task.tables.names, placement.tables, task.tables.dim.tolist(), strict=True):
        if sharding.columns and sharding.columns[-1][1] != dim:
            return f"the placement holds {sharding.columns[-1][1]} columns of {name!r}, which has {dim}"
    return ""


def _is_any(kind: Int[Tensor, " S"], *types: ShardingType) -> Bool[Tensor, " S"]:
    return torch.isin(kind, torch.tensor([SHARDING_TYPES.index(name) for name in types]))


def violation(task: PlacementTask, placement: Placement, *, is_measured: bool = False) -> str:
    """Why a placement is not legal for the task, in one sentence; empty if it is legal.

    One that only `is_measured` may have shards that are too wide for fbgemm's kernels for GPUs: ranks on CPUs run them.
    """
    return mismatch(task, placement) or next(_violations(task, placement, is_measured), "")


def sharding_violations(
    constraints: Constraints, name: str, sharding: TableSharding, dim: int, is_measured: bool = False
) -> Iterator[str]:
    """Why a table may not be sharded so, wherever its shards are."""
    types = constraints.sharding_types_for(name)
    if sharding.sharding_type not in types:
        yield f"table {name!r} is sharded {sharding.sharding_type}, but may be {' or '.join(types)}"
    is_cached = sharding.cached_share is not None
    if not constraints.may_be_cached(name) if is_cached else constraints.cached_share_of.get(name):
        where = "host memory (--cache allows it)" if is_cached else "device memory"
        yield f"table {name!r} is in {where}, which its constraints do not allow"
    least = constraints.narrowest_columns_of.get(name, 0)
    if len(sharding.columns) > 1 and any(end - start < least for start, end in sharding.columns):
        yield f"table {name!r} has a shard of fewer than {least} columns"
    if sharding.is_too_wide(dim) and not is_measured:
        yield f"table {name!r} has a shard of over {WIDEST_SHARD} columns, which fbgemm's kernels for GPUs look up as zeros"


def allowed_devices(task: PlacementTask) -> Bool[Tensor, "T D"]:
    """Devices that may hold shards of each table: named by the constraints, and with any memory for tables."""
    allowed = (task.capacity_bytes > 0).repeat(len(task.tables), 1)
    named = task.constraints.pinned
    for t, name in enumerate(task.tables.names):
        if name in named:
            allowed[t] &= torch.isin(torch.arange(task.num_devices), torch.tensor(named[name]))
    return allowed


def _violations(task: PlacementTask, placement: Placement, is_measured: bool) -> Iterator[str]:
    constraints = task.constraints
    shards = Shards.of(task, placement)
    held, capacity = shards.memory_bytes(), task.capacity_bytes  # [D]
    fullest = int((held - capacity).argmax())
    if held[fullest] > capacity[fullest]:
        yield f"device {fullest} would hold {gib(int(held[fullest]))} of tables, but has {gib(int(capacity[fullest]))}"
    names = task.tables.names
    for (name, _, dim), sharding in zip(task.tables.sizes, placement.tables, strict=True):
        yield from sharding_violations(constraints, name, sharding, dim, is_measured)
    wrong = ~allowed_devices(task)[shards.table, shards.device]
    for t, device in zip(shards.table[wrong].tolist(), shards.device[wrong].tolist(), strict=True):
        yield f"table {names[t]!r} has a shard on device {device}, which it may not use"
    devices_of: dict[str, set[int]] = defaultdict(set)
    if constraints.together or constraints.apart:
        placed = ~shards.is_any("data_parallel")  # copies have no place
        for t, device in zip(shards.table[placed].tolist(), shards.device[placed].tolist(), strict=True):
            devices_of[names[t]].add(device)
    for group in constraints.together:
        if len(set().union(*(devices_of[name] for name in group))) > 1:
            yield f"tables {sorted(group)} do not share one device"
    for group in constraints.apart:
        if sum(len(devices_of[name]) for name in group) > len(set().union(*(devices_of[name] for name in group))):
            yield f"tables {sorted(group)} are to be apart, but share a device"


class NoPlacementError(ValueError):
    """A placer found no legal placement.

    Attributes:
        is_proved: whether none exists.
        is_strict: whether constraints exclude it, however much memory devices have.

    >>> ds.place(replace(task, memory_bytes=2**20), "a100")
    Traceback (most recent call last):
    dreamshard.tasks.NoPlacementError: ...
    """

    def __init__(self, message: str, *, is_proved: bool = False, is_strict: bool = False) -> None:
        super().__init__(message)
        self.is_proved, self.is_strict = is_proved, is_strict


@runtime_checkable
class Placer(Protocol):
    """Turns a task into a placement.

    >>> class First:
    ...     name = "first"
    ...     def place(self, task, budget_ms=None):
    ...         return ds.Placement.whole([0] * len(task.tables), task.num_devices)
    >>> ds.place(task, First()).tables["item"].where
    (0,)
    """

    @property
    def name(self) -> str:
        """The placer's name in reports and on the command line."""

    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """Place a task's tables by the sharding types that the task's constraints allow and the placer knows.

        Args:
            budget_ms: work of a search, as much as an idle core does in this time; None for the placer's own.

        Raises:
            NoPlacementError: none was found.
        """


class OrderedPlacer(ABC):
    """A placer whose placements depend neither on the order of a list of tables nor on the numbers of equal devices.

    Searches draw by number, and sums depend on their order, so `place_ordered` sees a task in one canonical order.
    """

    orders_tables: ClassVar[bool] = True

    @torch.inference_mode()
    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """See `Placer`."""
        order = table_order(task.tables) if self.orders_tables else torch.arange(len(task.tables))
        ordered = task
        if not torch.equal(order, torch.arange(len(order))):
            ordered = replace(task, tables=task.tables.select(order))
        devices = device_order(ordered)
        names = devices.tolist()
        is_other = names != sorted(names)
        if is_other:
            ordered = replace(ordered, constraints=ordered.constraints.renumbered(devices.argsort().tolist()))
        placement = self.place_ordered(ordered, budget_ms)
        tables = [placement.tables[i] for i in order.argsort().tolist()]
        if is_other:
            tables = [replace(table, where=tuple(names[place] for place in table.where)) for table in tables]
        return replace(placement, tables=tuple(tables)).on_hosts_of(task.devices_per_host)

    @abstractmethod
    def place_ordered(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """The placement of a task in canonical order; arguments and errors as for `place`."""


def table_order(tables: Tables) -> Int[Tensor, " T"]:
    """Numbers of the tables by rows, then by all other figures; by name and columns only if these are the same."""
    figures = tables.lookups, tables.unique_rows, tables.pooling_factor, tables.dim, tables.rows
    names = tables.column_ranges[:, 0].numpy(), np.array(tables.names)
    keys = *names, *(figure.numpy() for figure in figures)  # the last counts first
    return torch.from_numpy(np.lexsort(keys))


def device_order(task: PlacementTask) -> Int[Tensor, " D"]:
    """Numbers of the devices: the most memory first, then by the tables that may be there; equal ones keep their order.

    Blocks of rows go by the device's number, so devices keep theirs if tables may be spread over several.
    """
    if task.constraints.places_freely or task.constraints.all_sharding_types - set(ON_ONE_DEVICE):
        return torch.arange(task.num_devices)
    forbidden = ~allowed_devices(task)[table_order(task.tables)]  # [T, D]
    keys = [*forbidden.flip(0).numpy(), -task.capacity_bytes.numpy()]  # the last counts first
    return torch.from_numpy(np.lexsort(keys))
