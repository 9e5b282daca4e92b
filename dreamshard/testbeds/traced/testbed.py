"""The testbed that counts what the kernels do with the actual lookups; a GPU's cache is simulated, no device is needed."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dreamshard.costs import CostSample, DeviceCosts, MeasuredStep, ShardingSample
from dreamshard.exchange_sample import Exchange, ExchangeSample
from dreamshard.placed_shards import PlacedShards
from dreamshard.placement import Placement
from dreamshard.sharding import ShardedPlacement
from dreamshard.tables import BYTES_PER_ROW_STATE, Optimizer, parent_name
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.accelerator_spec import AcceleratorSpec
from dreamshard.testbeds.accelerators.collectives import collectives_s, index_exchange_s
from dreamshard.testbeds.accelerators.links import all_to_all_s, vector_bytes
from dreamshard.testbeds.accelerators.roofline import link_devices_per_host
from dreamshard.testbeds.base import TestbedSetup, check_exchange, check_placement, check_sharding, of_any_sharding
from dreamshard.testbeds.clocks import interquartile_range
from dreamshard.testbeds.exchange_by_links import exchange_by_links
from dreamshard.testbeds.traced.accesses import LINE_BYTES, Floats, SetSampler
from dreamshard.testbeds.traced.cache import WAYS
from dreamshard.testbeds.traced.forward import RowLayout
from dreamshard.testbeds.traced.law import backward_s, forward_s
from dreamshard.testbeds.traced.replay import SAMPLES, missed_sectors
from dreamshard.testbeds.traced.tables import TableTrace, TraceCache, trace
from dreamshard.workloads.lookups import Lookups, check_indices

SAMPLES_PER_K = 512
"""Batches of so many samples have every set simulated; larger ones one of as many sets as they are larger."""
MOST_K = 64
LEAST_SETS = 4 * SAMPLES
KEPT_SHARDS = 100_000


@dataclass(frozen=True)
class _Piece:
    """What a device holds of a table, and all that its costs depend on beside the setup.

    Attributes:
        name: of the piece; where it lies in the cache follows from it.
        table: whose lookups it gets.
        table_rows: of the whole table.
        first_row: of the piece; only it has lookups of its rows.
        rows: of the piece.
        dim: columns of the piece.
        row_bytes: of weights and what is stored beside them, without optimizer state.
    """

    name: str
    table: str
    table_rows: int
    first_row: int
    rows: int
    dim: int
    row_bytes: int
    optimizer: Optimizer


ShardKey = tuple[_Piece, ...]


class TracedTestbed:
    """Costs counted from the actual lookups of the tables; see the package's docstring for what the counts are.

    The same seed, task and placement give the same costs, to the bit. The only error is that of sampling cache sets, which
    the seed chooses: `repeats` disjoint samples of sets give as many estimates of the overall cost, and `spread_ms` is their
    interquartile range; that of the reported cost is about `sqrt(repeats)` times less. Shards that were measured before are
    not replayed again.

    Args:
        setup: its lookups, batch size and seed count.
        spec: of the accelerator.
        sampled: simulate one of so many cache sets, a power of two; None to choose by the batch size.

    Raises:
        ValueError: the cache has too few sets to sample so few of them.
    """

    name = "traced"
    max_devices: int | None = None

    def __init__(self, setup: TestbedSetup, spec: AcceleratorSpec, sampled: int | None = None) -> None:
        self.setup = setup
        self.spec = spec
        self.hardware = self.links = f"traced {spec.name}"
        num_sets = spec.l2_bytes // (LINE_BYTES * WAYS)
        most = num_sets // LEAST_SETS
        if most < 1 or (sampled is not None and (not 1 <= sampled <= most or sampled & (sampled - 1))):
            raise ValueError(
                f"one of {sampled or 1} of the {num_sets} cache sets of {spec.name} cannot be simulated, since the sampling "
                f"error is estimated from at least {LEAST_SETS} sets; give a power of two up to {most}, or a cache of at "
                f"least {LEAST_SETS * WAYS * LINE_BYTES} bytes"
            )
        k = sampled or min(most, MOST_K, max(1, setup.batch_size // SAMPLES_PER_K))
        log2_k = k.bit_length() - 1
        self.sampler = SetSampler(num_sets >> log2_k, log2_k, setup.seed)
        self._traces = TraceCache()
        self._shards: OrderedDict[ShardKey, Floats] = OrderedDict()
        self._lock = threading.Lock()

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        """See `Testbed`; raises a ValueError, too, if lookups are missing or of other tables."""
        task, placement = check_placement(task, placement, self.max_devices)
        pieces = [[_piece_of(task, t) for t in placement.tables_of(d)] for d in range(task.num_devices)]
        with self._lock:
            compute_s = self._compute_s(pieces)  # [S+1, D, 2]
        sum_dims = torch.zeros(task.num_devices, dtype=torch.float64)  # [D]
        sum_dims.scatter_add_(0, placement.device, task.tables.dim.double())
        sent_bytes = vector_bytes(sum_dims, self.setup.batch_size)
        comm_s = all_to_all_s(sent_bytes, self.spec, task.devices_per_host)  # [D]
        return CostSample(placement=placement, **vars(self._step(task, compute_s, comm_s, comm_s)))

    def measure_sharding(self, task: PlacementTask, placement: ShardedPlacement) -> ShardingSample:
        """See `ShardingTestbed`: a block of rows is traced with the lookups of its rows; collectives follow from the links.

        Of whole tables and column shards exactly what `measure` gives.

        Raises:
            ValueError: as for `measure`, and where a table is copied to all devices or kept in host memory.
        """
        shards = check_sharding(task, placement, self.max_devices)
        self._check_kernels(task, placement)
        batch_size, per_host = self.setup.batch_size, link_devices_per_host(task, shards, self.spec)
        index_ms = (1e3 * index_exchange_s(shards, batch_size, self.spec, per_host)).float()
        whole = placement.as_columns()
        if whole is not None:
            return of_any_sharding(self.measure(task, whole), placement, index_ms)
        with self._lock:
            compute_s = self._compute_s(_pieces_of(task, shards))  # [S+1, D, 2]
        comm = collectives_s(shards.collectives(), batch_size, self.spec, per_host)
        step = self._step(task, compute_s, comm.forward_s, comm.backward_s)
        return ShardingSample(placement=placement, index_ms=index_ms, **vars(step))

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """See `ExchangeTestbed`: from the curves of the preset's links."""
        check_exchange(exchange, self.max_devices)
        return exchange_by_links(exchange, self.spec, testbed=self.name, hardware=self.hardware)

    def close(self) -> None:
        """Forget all traces."""
        with self._lock:
            self._traces = TraceCache()
            self._shards.clear()

    def _check_kernels(self, task: PlacementTask, placement: ShardedPlacement) -> None:
        """Refuse tables that other kernels serve than those that are counted here.

        Raises:
            ValueError: there are some.
        """
        for name, sharding in zip(task.tables.names, placement.tables, strict=True):
            copied = sharding.sharding_type == "data_parallel"
            if copied or sharding.cached_share is not None:
                where = "copied to all devices" if copied else "in host memory with a cache"
                raise ValueError(
                    f"table {name!r} is {where}, which the testbed {self.name!r} cannot measure: it counts what the fused "
                    "kernels do in device memory, and such tables have other kernels; shard the table otherwise, or measure "
                    "on `simulated`, `emulated` or `cluster`"
                )

    def _step(
        self, task: PlacementTask, compute_s: Floats, forward_comm_s: Tensor, backward_comm_s: Tensor
    ) -> MeasuredStep:
        """What both kinds of samples have, from `[S+1, D, 2]` seconds of compute and `[D]` of collectives."""
        forward, backward = torch.from_numpy(compute_s).unbind(dim=-1)  # [S+1, D]
        comm_s = [each.expand(len(compute_s), -1) for each in (forward_comm_s, backward_comm_s)]
        phases_ms = 1e3 * torch.stack([forward, *comm_s, backward], dim=-1)  # [S+1, D, 4]
        costs = DeviceCosts.from_phases(phases_ms[0].float())
        return MeasuredStep(
            task=task,
            costs=costs,
            overall_ms=float(costs.overall_ms()),
            spread_ms=interquartile_range(DeviceCosts.from_phases(phases_ms[1:]).overall_ms()),
            repeats=SAMPLES,
            clock="model",
            testbed=self.name,
            hardware=self.hardware,
            batch_size=self.setup.batch_size,
        )

    def _compute_s(self, pieces: Sequence[Sequence[_Piece]]) -> Floats:
        """`[S+1, D, 2]` seconds of the forward and backward calls; a device without tables computes for 0 s."""
        keys = [tuple(held) for held in pieces]
        new = dict.fromkeys(key for key in keys if key and key not in self._shards)
        traces = [[self._trace(piece) for piece in key] for key in new]
        if new:
            missed = missed_sectors(traces, self.sampler, self.spec.resident_warps)
            for key, tables, counts in zip(new, traces, missed, strict=True):
                self._shards[key] = self._shard_s(tables, counts)
        none = np.zeros((SAMPLES + 1, 2))
        found = np.stack([self._shards[key] if key else none for key in keys], axis=1)
        while len(self._shards) > KEPT_SHARDS:
            self._shards.popitem(last=False)
        return found

    def _shard_s(self, tables: Sequence[TableTrace], missed: Floats) -> Floats:
        """`[S+1, 2]` seconds of one device's calls, from the sectors that miss `[S+1, K, T]`."""
        forward, long, short = ([table.work[kernel] for table in tables] for kernel in range(missed.shape[1]))
        num_lookups, num_rows = sum(table.lookups for table in tables), sum(table.rows for table in tables)
        forward_part = forward_s(forward, missed[:, 0], self.spec)
        backward_part = backward_s(long, short, missed[:, 1:], num_lookups, num_rows, self.spec)
        return np.stack([forward_part, backward_part], axis=1)

    def _trace(self, piece: _Piece) -> TableTrace:
        def make() -> TableTrace:
            layout = RowLayout(piece.name, piece.dim, piece.row_bytes)
            return trace(
                self._lookups(piece), layout, piece.rows, piece.optimizer, self.sampler, self.spec.resident_warps
            )

        return self._traces.get(piece, make)

    def _lookups(self, piece: _Piece) -> Lookups:
        """The batch of a piece.

        Raises:
            ValueError: there are none, too few, or they name rows that the table does not have.
        """
        lookups = self.setup.lookups(piece.table)
        if lookups.batch_size < self.setup.batch_size:
            raise ValueError(
                f"table {piece.table!r} has lookups of {lookups.batch_size} samples, too few for the batch of "
                f"{self.setup.batch_size} to trace; ingest the workload with a larger batch, or measure a smaller one"
            )
        first = lookups.first(self.setup.batch_size)
        check_indices(first.indices, piece.table_rows, f"table {piece.table}")
        return first if piece.rows == piece.table_rows else first.of_rows(piece.first_row, piece.first_row + piece.rows)


def _piece_of(task: PlacementTask, t: int) -> _Piece:
    """A table of the task, which may be columns of one, as a whole."""
    tables = task.tables
    name, rows, dim = tables.names[t], int(tables.rows[t]), int(tables.dim[t])
    return _Piece(name, parent_name(name), rows, 0, rows, dim, _row_bytes(task, t, dim), task.optimizer)


def _pieces_of(task: PlacementTask, shards: PlacedShards) -> list[list[_Piece]]:
    """The pieces of each device."""
    held: list[list[_Piece]] = [[] for _ in range(shards.num_devices)]
    columns = (shards.device, shards.table, shards.rows[:, 0], shards.tables.rows, shards.tables.dim)
    for name, d, t, first, rows, dim in zip(shards.tables.names, *(each.tolist() for each in columns), strict=True):
        table, table_rows = parent_name(task.tables.names[t]), int(task.tables.rows[t])
        held[d].append(_Piece(name, table, table_rows, first, rows, dim, _row_bytes(task, t, dim), task.optimizer))
    return held


def _row_bytes(task: PlacementTask, t: int, dim: int) -> int:
    return dim * int(task.weight_bytes[t]) + int(task.row_bytes[t]) - BYTES_PER_ROW_STATE[task.optimizer]
