"""Laws of hardware that the project does not know, with a testbed of each.

A table is a row of loads that add up on its device; compiled functions turn the sums into milliseconds.

- `unseen`: work grows with less than the dim, fused work with less than the sum; many tables slow a device down, as do many
  distinct bytes; the backward pass pays for rows that many samples share.
- `lru`: reads hit an LRU cache as Che's approximation has it, so a table whose rows fit is read at the cache's bandwidth;
  memory and instructions overlap; a wide table idles the lanes of narrow ones.
- `pages`: a random read opens a row of DRAM, less often in a small table, and walks the page table beyond the reach of a TLB;
  the cache keeps as many distinct rows as fit; few lookups do not fill the device.

`simulated` is the simulated testbed's law in the same form.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numba
import numpy as np
import torch

from dreamshard.cost_model.compiled import CURVE_VALUES, Floats, curve_ms
from dreamshard.costs import CostSample, Exchange, ExchangeSample
from dreamshard.hardware import roofline
from dreamshard.hardware.links import VECTOR_BYTES, collective_s
from dreamshard.tables import NUM_BINS, Placement, Tables
from dreamshard.tasks import PlacementTask, Shards
from dreamshard.testbeds.base import Testbed
from tests.helpers.samples import sample_of_phases
from tests.helpers.testbeds import RTX2080TI, table_loads

NOISE, BATCH = 0.01, 65_536
_COUNT, _DIM = 0, 1  # columns of all loads
_MIDDLE = np.array([1.0] + [0.75 * 2**j + 0.5 for j in range(1, NUM_BINS)])  # lookups of a row of each bin


@dataclass(frozen=True)
class Law:
    """Costs of whole tables and columns.

    Attributes:
        loads: `[T, K]` of tables, the first two columns 1 and the dim.
        compute_ms: compiled; forward and backward of a device's summed loads.
        comm_ms: compiled; writes forward and backward of an all-to-all of dims `[D]` to its last argument, `[D, 2]`; forward
            may wait for devices whose compute takes longer.
        waits: whether it does.
        host_devices: devices on a host; None if all share one.
    """

    name: str
    loads: Callable[[Tables], Floats]
    compute_ms: Callable[[Floats], tuple[float, float]]
    comm_ms: Callable[[Floats, Floats, Floats, Floats], None]
    waits: bool = False
    host_devices: int | None = None

    def phases_ms(self, task: PlacementTask, placement: Placement, waits: bool = False) -> torch.Tensor:
        """`[D, 4]` without noise, and without waits, as samples are, or with them."""
        shards = Shards.of(task, placement)
        loads = torch.from_numpy(self.loads(shards.tables))
        sums = loads.new_zeros(task.num_devices, loads.shape[1]).index_add_(0, shards.device, loads).numpy()
        return torch.from_numpy(self.devices_ms(sums, waits))

    def devices_ms(self, sums: Floats, waits: bool) -> Floats:
        """`[D, 4]` of the sums of each device's loads."""
        compute = np.array([self.compute_ms(device) if device[_COUNT] else (0.0, 0.0) for device in sums])
        comm = self.exchange_ms(sums[:, _DIM].copy(), waits * compute.sum(axis=1))
        return np.column_stack([compute[:, 0], comm, compute[:, 1]])

    def exchange_ms(self, dims: Floats, own_ms: Floats | None = None) -> Floats:
        """`[D, 2]` forward and backward of an all-to-all, which waits for compute of `own_ms`."""
        out = np.empty((len(dims), 2))
        self.comm_ms(links(len(dims)), dims, np.zeros(len(dims)) if own_ms is None else own_ms, out)
        return out

    def true_ms(self, task: PlacementTask, placement: Placement) -> float:
        """Overall cost of a placement, without noise, with waits."""
        return float(self.phases_ms(task, placement, waits=True).sum(dim=1).amax())


@dataclass(frozen=True)
class LawTestbed(Testbed):
    """Measures by a law, with noise that depends on the seed and what is measured."""

    law: Law
    seed: int
    noise: float = NOISE
    hardware = links = "a law of its own"

    @property
    def name(self) -> str:  # type: ignore[override]
        """The law's."""
        return self.law.name

    def measure(self, task: PlacementTask, placement: Placement) -> CostSample:
        seed = int((placement.device * torch.arange(len(placement.device))).sum())
        phases = self._noisy(self.law.phases_ms(task, placement), seed)
        return sample_of_phases(task, placement, phases, testbed=self.name, hardware=self.hardware, batch_size=BATCH)

    def measure_exchange(self, exchange: Exchange) -> ExchangeSample:
        dims = exchange.sent_bytes.double().numpy() / (4 * BATCH)
        both_ms = self._noisy(torch.from_numpy(self.law.exchange_ms(dims)), int(dims.sum()))
        how = {"clock": "model", "testbed": self.name, "hardware": self.hardware}
        how["host_devices"] = self.law.host_devices
        return ExchangeSample(exchange=exchange, forward_ms=both_ms[:, 0], backward_ms=both_ms[:, 1], **how)

    def _noisy(self, exact_ms: torch.Tensor, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed + number)
        drawn = torch.randn(exact_ms.shape, generator=generator, dtype=exact_ms.dtype)
        return (exact_ms * (1 + self.noise * drawn)).float()


@cache
def links(num_devices: int) -> Floats:
    """The first argument of `Law.comm_ms`: the simulated all-to-all by its largest sender, and its part by the mean one."""
    sent_bytes = torch.from_numpy(CURVE_VALUES) * (VECTOR_BYTES * BATCH)
    of_largest, of_both = (
        2e3 * collective_s(sent_bytes, num_devices, RTX2080TI, RTX2080TI.devices_per_host, mean_bytes=mean).numpy()
        for mean in (torch.zeros_like(sent_bytes), sent_bytes)
    )
    return np.stack([of_largest, of_both - of_largest])


def _counts(tables: Tables) -> tuple[Floats, Floats, Floats, Floats]:
    """Dims, rows, and lookups and distinct rows of a batch, `[T]` each."""
    dim, rows = tables.dim.double().numpy(), tables.rows.double().numpy()
    lookups = tables.pooling_factor.double().numpy() * BATCH
    unique = tables.unique_rows.double().numpy() / np.maximum(tables.lookups.double().numpy(), 1) * lookups
    return dim, rows, lookups, np.minimum(unique, rows)


def _simulated_loads(tables: Tables) -> Floats:
    return table_loads(tables, BATCH, "fp16", "sgd").numpy()


_FIGURES = roofline.figures_of(RTX2080TI, BATCH)


@numba.njit
def _simulated_compute_ms(load: Floats) -> tuple[float, float]:
    return 1e3 * roofline.forward_s(_FIGURES, load), 1e3 * roofline.backward_s(_FIGURES, load)


@numba.njit
def _simulated_comm_ms(curves: Floats, dims: Floats, own_ms: Floats, out: Floats) -> None:
    out[:] = 0.5 * (curve_ms(curves, 0, dims.max()) + curve_ms(curves, 1, dims.mean()))


def _unseen_loads(tables: Tables) -> Floats:
    dim, _, lookups, unique = _counts(tables)
    work = 1e-8 * lookups * (6 + dim**0.85) * (0.4 + (unique / np.maximum(lookups, 1)) ** 0.35)
    shared = 2e-8 * np.maximum(lookups - unique, 0) * dim**0.5
    return np.column_stack([np.ones_like(dim), dim, work, shared, unique * dim * 4])


@numba.njit
def _unseen_compute_ms(load: Floats) -> tuple[float, float]:
    count, _, work, shared, touched = load
    crowded = 1 + 0.2 / (1 + np.exp(-(count - 14) / 3))
    thrashing = 1 + 0.3 / (1 + max(touched / 2e8, 1e-9) ** -1.5)
    forward = 0.05 + work**0.93 * crowded * thrashing
    return forward, 0.12 + 1.6 * work**0.95 * thrashing + shared * crowded


@numba.njit
def _unseen_comm_ms(curves: Floats, dims: Floats, own_ms: Floats, out: Floats) -> None:
    share = 1 - 1 / len(dims)
    shared = 0.03 + 0.003 * share * dims.mean() + 0.0012 * (share * dims.max()) ** 1.15
    for d in range(len(dims)):
        out[d, 0] = shared + 0.004 * share * dims[d]
        out[d, 1] = 1.1 * out[d, 0]


_CACHE_BYTES = 2.5e6  # of a table's share of the cache
_MEMORY_RATE, _CACHE_RATE, _ISSUE_RATE = 3.4e8, 1.3e9, 1.1e8  # bytes and instructions per ms


def _hit_rate(rows: Floats, lookups: Floats, row_bytes: Floats) -> Floats:
    """`[T, J]` LRU hit rates of rows that are looked up so often: as many stay as fit (Che, Tung and Wang, 2002)."""
    low, high = np.full(len(rows), -20.0), np.full(len(rows), 5.0)
    for _ in range(50):
        middle = (low + high) / 2  # logarithm of the share of a batch for which a row stays
        kept = (rows * -np.expm1(-lookups * np.exp(middle)[:, None])).sum(axis=1) * row_bytes
        low, high = np.where(kept < _CACHE_BYTES, middle, low), np.where(kept < _CACHE_BYTES, high, middle)
    return -np.expm1(-lookups * np.exp(low)[:, None])


def _lru_loads(tables: Tables) -> Floats:
    dim, _, lookups, unique = _counts(tables)
    share = tables.bins.numpy() / np.maximum(tables.bins.numpy().sum(axis=1, keepdims=True), 1e-12)
    rows = unique[:, None] * share  # [T, 17]
    often = np.maximum(_MIDDLE * (lookups / np.maximum((rows * _MIDDLE).sum(axis=1), 1e-9))[:, None], 1)
    row_bytes, gradient_bytes = 32 * np.ceil(dim / 16), 32 * np.ceil(dim / 8)
    again = rows * (often - 1)
    missed = unique + (again * (1 - _hit_rate(rows, often, row_bytes))).sum(axis=1)
    outputs = BATCH * dim * 4
    instructions = lookups * (3 + dim / 16)
    idle = lookups * 2.5 * (dim <= 64)
    touched = np.minimum(lookups, BATCH) * gradient_bytes
    gradients = touched + (lookups * gradient_bytes - touched).clip(min=0) * touched / (touched + 2 * _CACHE_BYTES)
    read, updated = missed * row_bytes + outputs + 4 * lookups, gradients + 3 * unique * row_bytes
    columns = [np.ones_like(dim), dim, read, lookups * row_bytes, instructions, idle, dim > 64, lookups, updated]
    return np.column_stack(columns).astype(np.float64)


@numba.njit
def _lru_compute_ms(load: Floats) -> tuple[float, float]:
    _, _, missed, read, instructions, idle, wide, lookups, updated = load
    busy = (instructions + idle * min(wide, 1.0)) / _ISSUE_RATE + read / _CACHE_RATE
    memory = missed / _MEMORY_RATE
    forward = 0.03 + (memory**4 + busy**4) ** 0.25
    sorting = lookups * 60 / _MEMORY_RATE
    return forward, 0.11 + sorting + ((updated / (0.75 * _MEMORY_RATE)) ** 4 + (1.4 * busy) ** 4) ** 0.25


@numba.njit
def _lru_comm_ms(curves: Floats, dims: Floats, own_ms: Floats, out: Floats) -> None:
    out[:, 0] = 0.02 + 0.004 * len(dims) + dims.max() * (1 - 1 / len(dims)) * 4 * BATCH / 4e7
    out[:, 1] = 1.05 * out[0, 0]


_DRAM_ROW, _WINDOW, _TLB_REACH = 2048, 8e3, 1.5e8  # bytes; reads that the controller reorders; bytes
_ACTIVATE, _SECTOR, _WALK, _KEPT = 9e-7, 1.1e-7, 1.2e-6, 4e6  # ms of a device; bytes of the cache


def _pages_loads(tables: Tables) -> Floats:
    dim, rows, lookups, unique = _counts(tables)
    table_bytes, distinct_bytes = rows * dim * 2, unique * dim * 2
    again = np.maximum(lookups - unique, 0)
    missed = unique + again * (1 - _KEPT / np.maximum(distinct_bytes, 1)).clip(min=0)
    opened = np.exp(-_WINDOW * _DRAM_ROW / np.maximum(table_bytes, 1))
    walked = (1 - _TLB_REACH / np.maximum(table_bytes, 1)).clip(min=0)
    scattered = 0.25 * _ACTIVATE * opened + 0.1 * _WALK * walked  # banks and walkers work side by side
    forward = missed * (0.25 * _SECTOR * np.ceil(dim / 16) + scattered) + 5e-8 * lookups + BATCH * dim * 1.2e-8
    backward = 2 * unique * (0.25 * _SECTOR * np.ceil(dim / 16) + scattered) + lookups * (1.8e-7 + 1.2e-8 * dim**0.9)
    return np.column_stack([np.ones_like(dim), dim, forward, backward, lookups, unique])


@numba.njit
def _pages_compute_ms(load: Floats) -> tuple[float, float]:
    _, _, forward, backward, lookups, unique = load
    filled, updating = 1 - 0.4 * np.exp(-lookups / 4e6), 1 - 0.4 * np.exp(-unique / 4e5)
    return (0.04**2 + (forward / filled) ** 2) ** 0.5, (0.15**2 + (backward / updating) ** 2) ** 0.5


@numba.njit
def _pages_comm_ms(curves: Floats, dims: Floats, own_ms: Floats, out: Floats) -> None:
    rate, latency, most = 3e7 / (4 * BATCH * (1 - 1 / len(dims))), 0.02 * np.log2(len(dims)), dims.max()
    for d in range(len(dims)):
        out[d, 0] = latency + (0.4 * dims[d] + 0.6 * most) / rate
        out[d, 1] = out[d, 0] + 0.02


SIMULATED = Law("simulated", _simulated_loads, _simulated_compute_ms, _simulated_comm_ms)
UNSEEN = Law("unseen", _unseen_loads, _unseen_compute_ms, _unseen_comm_ms)
LRU = Law("lru", _lru_loads, _lru_compute_ms, _lru_comm_ms)
PAGES = Law("pages", _pages_loads, _pages_compute_ms, _pages_comm_ms)
LAWS = (SIMULATED, UNSEEN, LRU, PAGES)
