"""The parts of the page's bars: each table on each device, and the small ones of a device together."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from dreamshard.costs import PHASES
from flows.reports.plan_view.data import Side

OTHERS, REST = -1, -2
"""Numbers of what is no table: a device's small tables together, and what no table has a part in."""

_MOST = 8000  # parts of all bars of a chart
_FEWEST = 6  # of one bar


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Parts of stacked bars, in the order in which they are stacked on each device.

    Attributes:
        table: `[N]` number of a table, `OTHERS` or `REST`.
        device: `[N]`.
        phases: `[N, 4]` milliseconds; None of memory.
        memory_bytes: `[N]`.
        count: `[N]` tables in it; 0 of `REST`.
        moved: `[N]` whether it moves.
    """

    table: Int[NDArray[np.int64], " N"]
    device: Int[NDArray[np.int64], " N"]
    phases: Float[NDArray[np.float64], "N 4"]
    memory_bytes: Int[NDArray[np.int64], " N"]
    count: Int[NDArray[np.int64], " N"]
    moved: Bool[NDArray[np.bool_], " N"]


def segments(side: Side, moved: Collection[tuple[int, int]], *, by_cost: bool) -> Segments:
    """The parts of a side's bars, largest first; beyond the most that a page can draw, a device's smallest are put together.

    Args:
        side: whose bars they are.
        moved: tables and devices to highlight.
        by_cost: whether cost orders them, and what no table has a part in is drawn; else memory.
    """
    shares = side.shares
    table, device = shares.table.numpy().astype(np.int64), shares.device.numpy().astype(np.int64)
    held = shares.memory_bytes.numpy().astype(np.int64)
    known = shares.phases_ms is not None
    phases = shares.phases_ms.double().numpy() if shares.phases_ms is not None else np.zeros((len(table), len(PHASES)))
    size = phases.sum(axis=1) if by_cost and known else held.astype(np.float64)
    order = np.lexsort((table, -size, device))
    table, device, held, phases = table[order], device[order], held[order], phases[order]
    rank = np.arange(len(device)) - np.searchsorted(device, device)
    most = max(_FEWEST, _MOST // max(shares.num_devices, 1))
    highlighted = np.array([pair in moved for pair in zip(table.tolist(), device.tolist(), strict=True)], dtype=bool)
    alone = (rank < most) | highlighted
    parts = [
        Segments(
            table=table[alone],
            device=device[alone],
            phases=phases[alone],
            memory_bytes=held[alone],
            count=np.ones(int(alone.sum()), np.int64),
            moved=highlighted[alone],
        )
    ]
    if not alone.all():
        parts.append(_together(device[~alone], phases[~alone], held[~alone], shares.num_devices))
    if by_cost and shares.rest_ms is not None:
        rest = shares.rest_ms.double().numpy()
        waiting = np.flatnonzero(rest.sum(axis=1) > 0)
        parts.append(
            _single(REST, waiting, rest[waiting], np.zeros(len(waiting), np.int64), np.zeros(len(waiting), np.int64))
        )
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("table", "device", "phases", "memory_bytes", "count", "moved")
    }
    stacked = np.argsort(joined["device"], kind="stable")
    return Segments(**{name: values[stacked] for name, values in joined.items()})


def _together(
    device: NDArray[np.int64], phases: NDArray[np.float64], held: NDArray[np.int64], num_devices: int
) -> Segments:
    """The small tables of each device as one part."""
    count = np.bincount(device, minlength=num_devices)
    devices = np.flatnonzero(count)
    sums: NDArray[np.float64] = np.stack([np.bincount(device, column, num_devices) for column in phases.T], axis=1)
    total = np.bincount(device, weights=held, minlength=num_devices).astype(np.int64)
    return _single(OTHERS, devices, sums[devices], total[devices], count[devices].astype(np.int64))


def _single(
    number: int,
    devices: NDArray[np.int64],
    phases: NDArray[np.float64],
    held: NDArray[np.int64],
    count: NDArray[np.int64],
) -> Segments:
    return Segments(
        table=np.full(len(devices), number, np.int64),
        device=devices.astype(np.int64),
        phases=phases,
        memory_bytes=held,
        count=count,
        moved=np.zeros(len(devices), dtype=bool),
    )
