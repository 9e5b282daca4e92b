"""Placements on the way from one to another: each a stop, with its cost and the bytes that it moves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dreamshard.legality import allowed_devices
from dreamshard.moving.blocks import Block, Blocks, blocks_of, moved_bytes
from dreamshard.moving.price import MovePrice
from dreamshard.placement import ON_ONE_DEVICE, Placement, TableSharding
from dreamshard.summed_costs import Change, SummedCosts, Sums
from dreamshard.tables import parent_name
from dreamshard.tasks import PlacementTask

Array = NDArray[np.float64]

_STEPS = 40  # of local search, the most from one start
_TARGETS = 4  # devices that take a table from the slowest one
_SWAPS = 64  # evaluated per step
_RETURNS = 32  # tables that save the most bytes, whose return is evaluated per step
_RELIEF = 0.3  # weight of the mean of the slowest devices, beside the slowest one, so that ties are broken one by one
_SHARPNESS = 24.0  # of that mean
_LEAST_GAIN = 1e-6  # of the total: less is no step


@dataclass(frozen=True)
class Stop:
    """A placement on the way.

    Attributes:
        shardings: of each table.
        sums: of the placement.
        device_ms: `[D]`.
        moved_bytes: from the plan in use.
        fits: whether no device holds more than it has room for.
    """

    shardings: tuple[TableSharding, ...]
    sums: Sums
    device_ms: Array
    moved_bytes: int
    fits: bool

    @property
    def overall_ms(self) -> float:
        """The slowest device's."""
        return float(self.device_ms.max())


class MovedBytes:
    """Bytes that each table moves from the plan in use; new tables are loaded, which moves nothing."""

    def __init__(self, task: PlacementTask, before: Blocks) -> None:
        self.task, self.before = task, before
        self._element_bytes = (task.weight_bytes + task.element_state_bytes).tolist()
        self._row_bytes = task.row_bytes.tolist()
        self._known: dict[tuple[int, TableSharding], int] = {}

    def learn(self, placement: Placement) -> None:
        """Take every table's bytes from a whole placement at once."""
        for t, (name, blocks) in enumerate(blocks_of(self.task, placement).items()):
            self._known[t, placement.tables[t]] = self._between(name, blocks)

    def of(self, table: int, sharding: TableSharding) -> int:
        """Of a table that `learn` has seen sharded so, or that is on one device or by columns."""
        key = table, sharding
        if key not in self._known:
            tables = self.task.tables
            rows = (0, int(tables.rows[table]))
            blocks = [
                Block(
                    tables.names[table],
                    device,
                    rows,
                    columns,
                    0,
                    self._element_bytes[table],
                    self._row_bytes[table],
                )
                for device, columns in zip(sharding.where, sharding.ranges(int(tables.dim[table])), strict=True)
            ]
            self._known[key] = self._between(tables.names[table], blocks)
        return self._known[key]

    def _between(self, name: str, blocks: Sequence[Block]) -> int:
        return moved_bytes({name: self.before.get(name, ())}, {name: blocks})


class Relocation:
    """Steps between placements of one task, each priced exactly.

    Attributes:
        task: whose tables are placed.
        summed: costs.
        bytes_of: moved by each table.
    """

    def __init__(self, task: PlacementTask, summed: SummedCosts, bytes_of: MovedBytes) -> None:
        self.task, self.summed, self.bytes_of = task, summed, bytes_of
        self.capacity = task.capacity_bytes.numpy()
        self.allowed = allowed_devices(task).numpy()
        groups = [*task.constraints.together, *task.constraints.apart]
        self.tied = np.array([any(parent_name(name) in group for group in groups) for name in task.tables.names])

    def stop(self, placement: Placement) -> Stop:
        """A stop at a placement."""
        self.bytes_of.learn(placement)
        sums = self.summed.sums(placement)
        moved = sum(self.bytes_of.of(t, each) for t, each in enumerate(placement.tables))
        return self._stop(placement.tables, sums, moved)

    def after(self, stop: Stop, changes: Sequence[Change]) -> Stop:
        """The next stop, once these tables are sharded otherwise."""
        shardings, moved = list(stop.shardings), stop.moved_bytes
        for change in changes:
            assert change.after is not None
            shardings[change.table] = change.after
            moved += self.bytes_of.of(change.table, change.after) - self.bytes_of.of(change.table, change.before)
        return self._stop(tuple(shardings), self.summed.after(stop.sums, changes), moved)

    def device_ms(self, stop: Stop, options: Sequence[Sequence[Change]]) -> tuple[Array, NDArray[np.bool_]]:
        """`[B, D]` after each set of changes, and `[B]` whether all devices have room."""
        costs, used = self.summed.costs_after(stop.sums, options)
        fits: NDArray[np.bool_] = np.all(used.numpy() <= self.capacity, axis=1)
        return costs.device_ms().double().numpy(), fits

    def improve(self, start: Stop, ends: Sequence[Stop], price: MovePrice) -> list[Stop]:
        """Stops of local search, each of less total cost than the one before.

        Args:
            start: that fits.
            ends: whose ways to shard a table it may take: the plan in use and the new placement.
            price: of a byte moved.
        """
        stops = [start]
        for _ in range(_STEPS):
            here = stops[-1]
            options = self._options(here, ends)
            if not options:
                break
            device_ms, fits = self.device_ms(here, options)
            growth = [sum(self._growth(change) for change in changes) for changes in options]
            totals = price.total_ms(1.0, 0) * _score(device_ms) + np.array([price.move_ms(each) for each in growth])
            totals[~fits] = np.inf
            best, now = int(totals.argmin()), price.total_ms(float(_score(here.device_ms[None])[0]), 0)
            if not totals[best] < now * (1 - _LEAST_GAIN):
                break
            stops.append(self.after(here, options[best]))
        return stops[1:]

    def _growth(self, change: Change) -> int:
        """Bytes that a change moves more than before."""
        assert change.after is not None
        return self.bytes_of.of(change.table, change.after) - self.bytes_of.of(change.table, change.before)

    def _options(self, here: Stop, ends: Sequence[Stop]) -> list[list[Change]]:
        """Changes worth pricing: to a table's sharding at either end, off the slowest device, and swaps with it."""
        slowest = int(here.device_ms.argmax())
        to_ends = [
            Change(t, sharding, other)
            for end in ends
            for t, (sharding, other) in enumerate(zip(here.shardings, end.shardings, strict=True))
            if sharding != other
        ]
        relieving = [change for change in to_ends if slowest in change.before.where or not change.before.where]
        saving = sorted(to_ends, key=self._growth)[:_RETURNS]
        options = [[change] for change in dict.fromkeys([*relieving, *saving])]
        fastest = [d for d in np.argsort(here.device_ms, kind="stable").tolist() if d != slowest][:_TARGETS]
        inside = self._movable(here, slowest)
        for t in inside:
            options += [[self._move(here, t, slowest, d)] for d in fastest if self.allowed[t, d]]
        swaps = [
            (t, other, d)
            for d in fastest
            for other in self._movable(here, d)
            for t in inside
            if self.allowed[t, d] and self.allowed[other, slowest] and t != other
        ]
        return options + [
            [self._move(here, t, slowest, d), self._move(here, other, d, slowest)]
            for t, other, d in self._promising(here, swaps, slowest)
        ]

    def _movable(self, here: Stop, device: int) -> list[int]:
        """Tables with a shard on a device, that may move alone."""
        return [
            t
            for t, sharding in enumerate(here.shardings)
            if sharding.sharding_type in ON_ONE_DEVICE and device in sharding.where and not self.tied[t]
        ]

    def _move(self, here: Stop, table: int, source: int, target: int) -> Change:
        """All shards of a table on one device, moved to another."""
        sharding = here.shardings[table]
        where = tuple(target if device == source else device for device in sharding.where)
        return Change(table, sharding, replace(sharding, where=where))

    def _promising(self, here: Stop, swaps: list[tuple[int, int, int]], slowest: int) -> list[tuple[int, int, int]]:
        """The swaps that come nearest to levelling the two devices, by the lookups and widths that change places."""
        if len(swaps) <= _SWAPS:
            return swaps
        tables = self.task.tables
        work = (tables.pooling_factor * tables.dim).double().numpy()
        loads = here.device_ms[slowest] / max(sum(work[t] for t in self._movable(here, slowest)), 1e-9)
        off = [
            abs(2 * loads * (work[t] - work[other]) - (here.device_ms[slowest] - here.device_ms[d]))
            for t, other, d in swaps
        ]
        return [swaps[i] for i in np.argsort(off, kind="stable")[:_SWAPS].tolist()]

    def _stop(self, shardings: tuple[TableSharding, ...], sums: Sums, moved: int) -> Stop:
        device_ms = self.summed.costs_of(sums).device_ms().double().numpy()
        return Stop(shardings, sums, device_ms, moved, bool((sums.used_bytes.numpy() <= self.capacity).all()))


def _score(device_ms: Array) -> Array:
    """`[B]` the slowest device's milliseconds, and a little of the mean of the slowest ones."""
    slowest = device_ms.max(axis=1)
    relative = device_ms / np.maximum(slowest, 1e-12)[:, None]
    mean = slowest * (relative**_SHARPNESS).mean(axis=1) ** (1 / _SHARPNESS)
    score: Array = (1 - _RELIEF) * slowest + _RELIEF * mean
    return score
