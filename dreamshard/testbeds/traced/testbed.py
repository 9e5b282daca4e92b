"""The testbed that counts what the kernels do with the actual lookups; a GPU's cache is simulated, no device is needed."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch

from dreamshard.costs import CostSample, DeviceCosts
from dreamshard.exchange_sample import Exchange, ExchangeSample
from dreamshard.placement import Placement
from dreamshard.tables import BYTES_PER_ROW_STATE, parent_name
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.accelerator_spec import AcceleratorSpec
from dreamshard.testbeds.accelerators.links import all_to_all_s, vector_bytes
from dreamshard.testbeds.base import TestbedSetup, check_exchange, check_placement
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

ShardKey = tuple[object, ...]


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
        shards = [placement.tables_of(d) for d in range(task.num_devices)]
        with self._lock:
            compute_s = self._compute_s(task, shards)  # [S+1, D, 2]
        sum_dims = torch.zeros(task.num_devices, dtype=torch.float64)  # [D]
        sum_dims.scatter_add_(0, placement.device, task.tables.dim.double())
        sent_bytes = vector_bytes(sum_dims, self.setup.batch_size)
        comm_s = all_to_all_s(sent_bytes, self.spec, task.devices_per_host).expand(SAMPLES + 1, -1)  # [S+1, D]
        forward, backward = torch.from_numpy(compute_s).unbind(dim=-1)
        phases_ms = 1e3 * torch.stack([forward, comm_s, comm_s, backward], dim=-1)  # [S+1, D, 4]
        costs = DeviceCosts.from_phases(phases_ms[0].float())
        return CostSample(
            task=task,
            placement=placement,
            costs=costs,
            overall_ms=float(costs.overall_ms()),
            spread_ms=interquartile_range(DeviceCosts.from_phases(phases_ms[1:]).overall_ms()),
            repeats=SAMPLES,
            clock="model",
            testbed=self.name,
            hardware=self.hardware,
            batch_size=self.setup.batch_size,
        )

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        """See `ExchangeTestbed`: from the curves of the preset's links."""
        check_exchange(exchange, self.max_devices)
        return exchange_by_links(exchange, self.spec, testbed=self.name, hardware=self.hardware)

    def close(self) -> None:
        """Forget all traces."""
        with self._lock:
            self._traces = TraceCache()
            self._shards.clear()

    def _compute_s(self, task: PlacementTask, shards: Sequence[Sequence[int]]) -> Floats:
        """`[S+1, D, 2]` seconds of the forward and backward calls; a device without tables computes for 0 s."""
        keys = [tuple(self._key(task, t) for t in shard) for shard in shards]
        new = {key: shard for key, shard in zip(keys, shards, strict=True) if key and key not in self._shards}
        traces = [[self._trace(task, t) for t in shard] for shard in new.values()]
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

    def _key(self, task: PlacementTask, t: int) -> ShardKey:
        """What the costs of a table depend on, beside the setup."""
        return (*self._layout(task, t), int(task.tables.rows[t]), task.optimizer)

    def _layout(self, task: PlacementTask, t: int) -> tuple[str, int, int]:
        dim = int(task.tables.dim[t])
        row_bytes = dim * int(task.weight_bytes[t]) + int(task.row_bytes[t]) - BYTES_PER_ROW_STATE[task.optimizer]
        return task.tables.names[t], dim, row_bytes

    def _trace(self, task: PlacementTask, t: int) -> TableTrace:
        def make() -> TableTrace:
            lookups, rows = self._lookups(task, t), int(task.tables.rows[t])
            layout = RowLayout(*self._layout(task, t))
            return trace(lookups, layout, rows, task.optimizer, self.sampler, self.spec.resident_warps)

        return self._traces.get(self._key(task, t), make)

    def _lookups(self, task: PlacementTask, t: int) -> Lookups:
        """The batch of a table, or of the table that it is columns of.

        Raises:
            ValueError: there are none, too few, or they name rows that the table does not have.
        """
        name = task.tables.names[t]
        lookups = self.setup.lookups(parent_name(name))
        if lookups.batch_size < self.setup.batch_size:
            raise ValueError(
                f"table {name!r} has lookups of {lookups.batch_size} samples, too few for the batch of "
                f"{self.setup.batch_size} to trace; ingest the workload with a larger batch, or measure a smaller one"
            )
        first = lookups.first(self.setup.batch_size)
        check_indices(first.indices, int(task.tables.rows[t]), f"table {name}")
        return first
