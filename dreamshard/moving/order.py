"""An order of moves in which no device ever holds more than it has room for.

A device makes room for a whole new block, fills it from where its parts are, and a device frees an old block once nobody
reads from it any more. Where no block can be made that way, an old one that is in the way goes to another device that has
room until it is read, and if none has, to host memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.moving.blocks import Block, Blocks, Range, sources

Kind = Literal["move", "cut", "load", "park", "stage"]
HOST = -1
"""The place of a block that waits in host memory."""

_ORDERS = 8  # tried where the first needs other places


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a schedule.

    Attributes:
        kind: `move` a part to another device; `cut`, that is re-split, a block on its device; `load` a table that is new or
            of another size; `park` a block on another device until it is read; `stage` it in host memory.
        source: device, `HOST`, or None for what is loaded.
        target: device or `HOST`.
        memory_bytes: that are written.
        frees: devices of blocks that nobody needs after this step.
    """

    kind: Kind
    table: str
    rows: Range
    columns: Range
    source: int | None
    target: int
    memory_bytes: int
    frees: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For a plan; a device is a number, host memory is `host`."""
        places = {HOST: "host"}
        return {
            "kind": self.kind,
            "table": self.table,
            "row_start": self.rows[0],
            "row_end": self.rows[1],
            "column_start": self.columns[0],
            "column_end": self.columns[1],
            "source": None if self.source is None else places.get(self.source, self.source),
            "target": places.get(self.target, self.target),
            "memory_bytes": self.memory_bytes,
            "frees": list(self.frees),
        }


@dataclass(frozen=True)
class Schedule:
    """Steps in their order.

    Attributes:
        steps: none exceeds the room of its target.
        highest_bytes: `[D]` the most that each device holds at any time, while both blocks of a step are there.
    """

    steps: tuple[Step, ...]
    highest_bytes: Int[Tensor, " D"]

    def bytes_of(self, *kinds: Kind) -> int:
        """Written by all steps of some kinds."""
        return sum(step.memory_bytes for step in self.steps if step.kind in kinds)


def schedule(before: Blocks, after: Blocks, capacity_bytes: Int[Tensor, " D"]) -> Schedule:
    """An order of the moves from `before` to `after`, with as little as possible on other places meanwhile.

    Tables that are only in `before` are dropped first, those that are only in `after` loaded last.

    Args:
        before: blocks in use, by table.
        after: blocks of a legal placement.
        capacity_bytes: `[D]` room for tables.
    """
    best: _Moving | None = None
    for seed in range(_ORDERS):
        moving = _Moving(before, after, capacity_bytes.numpy(), seed)
        moving.run()
        if best is None or moving.detour_bytes < best.detour_bytes:
            best = moving
        if best.detour_bytes == 0:
            break
    assert best is not None
    return Schedule(tuple(best.steps), torch.from_numpy(best.highest))


@dataclass(eq=False)
class _Old:
    """A block in use; `place` changes where it is parked."""

    block: Block
    place: int
    readers: int = 0


@dataclass(eq=False)
class _Arrival:
    """A block to be made, from parts of old ones."""

    block: Block
    parts: list[tuple[_Old, tuple[Range, Range]]] = field(default_factory=list)


class _Moving:
    """One attempt at an order.

    Attributes:
        steps: so far.
        highest: `[D]` bytes.
        detour_bytes: parked and staged; host memory counts double.
    """

    def __init__(self, before: Blocks, after: Blocks, capacity: NDArray[np.int64], seed: int) -> None:
        self.capacity, self.num_devices = capacity, len(capacity)
        self.held = np.zeros(len(capacity), np.int64)
        self.steps: list[Step] = []
        self.detour_bytes = 0
        self.priority = np.random.default_rng(seed).permutation if seed else np.arange
        self.olds: list[_Old] = []
        self.arrivals: list[_Arrival] = []
        self.loads: list[_Arrival] = []
        for name, blocks in after.items():
            self._add_table(before.get(name, ()), blocks)
        self.highest = self.held.copy()

    def run(self) -> None:
        """Make every block."""
        while self.arrivals:
            arrival = self._next_arrival()
            if arrival is None:
                self._make_room()
            else:
                self._make(arrival)
        for load in self.loads:
            self.held[load.block.device] += load.block.device_bytes
            self.highest = np.maximum(self.highest, self.held)
            self._step("load", load.block, None, load.block.device, load.block.stored_bytes)

    def _add_table(self, held: Sequence[Block], blocks: Sequence[Block]) -> None:
        staying = {block for block in held if any(block == other for other in blocks)}
        olds = {id(block): _Old(block, block.device) for block in held}
        for block in blocks:
            if block in staying:
                continue
            arrival = _Arrival(block, [(olds[id(source)], part) for source, part in sources(block, held)])
            for old, _ in arrival.parts:
                old.readers += 1
            (self.arrivals if arrival.parts else self.loads).append(arrival)
        for old in olds.values():
            if (old.block in staying or old.readers) and self._is_device(old.place):
                self.held[old.place] += old.block.device_bytes
            if old.block not in staying and old.readers:
                self.olds.append(old)

    def _next_arrival(self) -> _Arrival | None:
        """The block that frees the most where others wait for room; None where none has room."""
        free = self.capacity - self.held
        order = self.priority(len(self.arrivals))
        waiting = np.zeros(self.num_devices)
        for arrival in self.arrivals:
            waiting[arrival.block.device] += arrival.block.device_bytes
        best, best_freed = None, -1.0
        for i in order.tolist():
            arrival = self.arrivals[i]
            if arrival.block.device_bytes > free[arrival.block.device]:
                continue
            freed = sum(
                min(old.block.device_bytes, waiting[old.place])
                for old, _ in arrival.parts
                if old.readers == 1 and self._is_device(old.place)
            )
            if freed > best_freed:
                best, best_freed = arrival, float(freed)
        return best

    def _make(self, arrival: _Arrival) -> None:
        block = arrival.block
        self.held[block.device] += block.device_bytes
        self.highest = np.maximum(self.highest, self.held)
        self.arrivals.remove(arrival)
        for old, (rows, columns) in arrival.parts:
            old.readers -= 1
            frees: tuple[int, ...] = ()
            if old.readers == 0:
                self.olds.remove(old)
                if self._is_device(old.place):
                    self.held[old.place] -= old.block.device_bytes
                    frees = (old.place,)
            kind: Kind = "cut" if old.place == block.device else "move"
            part = replace(block, rows=rows, columns=columns)
            self._step(kind, part, old.place, block.device, part.stored_bytes, frees)

    def _make_room(self) -> None:
        """Send an old block away from the device that lacks the least room for a new one."""
        free = self.capacity - self.held
        choices: list[tuple[int, int, _Old]] = []
        for arrival in self.arrivals:
            device = arrival.block.device
            lacking = arrival.block.device_bytes - free[device]
            leaving = [old for old in self.olds if old.place == device]
            if not leaving:
                continue
            enough = [old for old in leaving if old.block.device_bytes >= lacking]
            old = min(enough or leaving, key=lambda old: abs(old.block.device_bytes - lacking))
            choices.append((max(int(lacking), old.block.device_bytes), len(choices), old))
        _, _, old = min(choices)
        block, source = old.block, old.place
        others = [d for d in range(self.num_devices) if d != source and free[d] >= block.device_bytes]
        was_parked = source != block.device
        self.held[source] -= block.device_bytes
        if others and not was_parked:
            old.place = max(others, key=lambda device: free[device])
            self.held[old.place] += block.device_bytes
            self.highest = np.maximum(self.highest, self.held)
            self.detour_bytes += block.stored_bytes
            self._step("park", block, source, old.place, block.stored_bytes, (source,))
        else:
            old.place = HOST
            self.detour_bytes += 2 * block.stored_bytes
            self._step("stage", block, source, HOST, block.stored_bytes, (source,))

    def _is_device(self, place: int) -> bool:
        return 0 <= place < self.num_devices

    def _step(
        self, kind: Kind, block: Block, source: int | None, target: int, memory_bytes: int, frees: tuple[int, ...] = ()
    ) -> None:
        self.steps.append(
            Step(
                kind=kind,
                table=block.table,
                rows=block.rows,
                columns=block.columns,
                source=source,
                target=target,
                memory_bytes=memory_bytes,
                frees=frees,
            )
        )
