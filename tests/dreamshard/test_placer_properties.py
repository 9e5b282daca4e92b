"""What holds of every placer on any task: legal, and the same whatever the order of tables."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.hardware.accelerator import hardware
from dreamshard.search import GreedyCostPlacer, RooflinePlacer
from dreamshard.search.packing import PlacementLimits, baselines, pack
from dreamshard.tables import Placement, Tables
from dreamshard.tasks import NoPlacementError, PlacementTask, allowed_devices, violation
from tests.benchmarks.neuroshard import NeuroShardPlacer
from tests.helpers.tables import pool_of, tables_of
from tests.helpers.trained import learnt, learnt_placer

PROVE_NOTHING = ("policy", "dreamshard_columns", "prior")
FREE = ("neuroshard", "policy")  # place without constraints on devices; the policy may find nothing at all

PLACERS: dict[str, Callable[[], Any]] = {
    **{name: (lambda name=name: baselines()[name]) for name in baselines()},
    "cost_greedy": lambda: GreedyCostPlacer(learnt().cost_network, learnt().normaliser),
    "policy": lambda: replace(learnt_placer(), inference="policy"),
    "dreamshard": lambda: replace(learnt_placer(), columns=False),
    "dreamshard_columns": learnt_placer,
    "prior": lambda: RooflinePlacer(hardware("a100")),
    "neuroshard": lambda: NeuroShardPlacer(learnt().cost_network, learnt().normaliser, columns=False),
    "autoshard": lambda: learnt_placer("autoshard"),
}
"""Makes a placer by name."""


def check(name: str, task: PlacementTask) -> None:
    """Assert every property of a placer on a task."""
    task = replace(task, constraints=Constraints()) if name in FREE else task
    placer = PLACERS[name]()
    try:
        placement = placer.place(task)
    except NoPlacementError as error:
        assert error.is_proved or name in PROVE_NOTHING, error  # noqa: PT017 - it may also place
        assert not (error.is_proved and packs(task)), error  # noqa: PT017
        return
    assert not violation(task, placement)
    held = held_by(task, placement)
    assert held_by(task, placer.place(task)) == held, "places otherwise when asked again"
    cached = replace(task, constraints=replace(task.constraints, caching=True))
    otherwise = placer.place(cached)
    if held_by(cached, otherwise) != held:  # caches that no table needs must pay
        least_ms, with_caches_ms = (float(placer.predict(cached, each).overall_ms()) for each in (placement, otherwise))
        assert with_caches_ms < 0.997 * least_ms, "caches that no table needs save little"
    turned = replace(task, tables=task.tables.select(torch.arange(len(task.tables)).flip(0)))
    assert held_by(turned, placer.place(turned)) == held, "places otherwise when tables come in another order"
    if not task.constraints.places_freely:  # devices are alike except in their constraints
        number = torch.randperm(task.num_devices, generator=torch.Generator().manual_seed(len(task.tables))).tolist()
        other = replace(task, constraints=task.constraints.renumbered(number))
        renumbered = placer.place(other)
        assert not violation(other, renumbered)
        assert by_kind(other, renumbered) == by_kind(task, placement), "places otherwise on devices of other numbers"


def packs(task: PlacementTask) -> bool:
    try:
        return pack(PlacementLimits.of(task))[0] is not None
    except NoPlacementError:
        return False


def held_by(task: PlacementTask, placement: Placement) -> dict[tuple[str, int, int], int]:
    """Device by table and columns."""
    tables = zip(task.tables.names, task.tables.dim.tolist(), placement.tables, strict=True)
    held = ((name, zip(sharding.ranges(dim), sharding.where, strict=True)) for name, dim, sharding in tables)
    return {(name, *columns): place for name, shards in held for columns, place in shards}


def by_kind(task: PlacementTask, placement: Placement) -> Counter[tuple[object, ...]]:
    """What each device holds, its memory and the tables that may be there, without its number."""
    held, allowed, room = held_by(task, placement), allowed_devices(task), task.capacity_bytes.tolist()
    on = [frozenset(shard for shard, place in held.items() if place == d) for d in range(task.num_devices)]
    return Counter((room[d], tuple(allowed[:, d].tolist()), on[d]) for d in range(task.num_devices))


def drawn_task(seed: int) -> PlacementTask:
    """A random task that memory and constraints do not rule out at once."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        with suppress(ValueError):  # contradictory, or larger than all devices: refused before any placer sees it
            return _task(generator, seed)


def _task(generator: torch.Generator, seed: int) -> PlacementTask:
    def drawn(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    count, num_devices = drawn(1, 14), drawn(1, 5)
    rows, dims = [10 ** drawn(2, 6) + drawn(0, 99) for _ in range(count)], [4 * drawn(1, 32) for _ in range(count)]
    tables = tables_of(rows, dims, [0.5 + drawn(0, 2000) / 50 for _ in range(count)])
    sizes = PlacementTask(tables, 1, 0).table_bytes
    share = (1.0, 1.02, 1.1, 1.5, 4.0)[drawn(0, 4)]  # of an even share, and at least the largest table
    room = max(int(share * float(sizes.sum()) / num_devices) + 1, int(sizes.max()))
    constraints = _constraints(tables, num_devices, room, drawn)
    return PlacementTask(tables, num_devices, room, name=f"random-{seed}", constraints=constraints)


def _constraints(tables: Tables, num_devices: int, room: int, drawn: Callable[[int, int], int]) -> Constraints:
    """None for two tasks of three, or one of each kind at random."""
    if drawn(0, 2) or len(tables) < 4 or num_devices < 3:
        return Constraints()
    names, last = tables.names, num_devices - 1
    pinned = {names[0]: (drawn(0, last),)} if drawn(0, 1) else {}
    if drawn(0, 1):
        excluded = drawn(0, last)
        pinned[names[1]] = tuple(device for device in range(num_devices) if device != excluded)
    together = (frozenset(names[1:3]),) if drawn(0, 1) else ()
    apart = (frozenset((names[0], names[3])),) if drawn(0, 1) else ()
    memory = {drawn(0, last): 0} if not drawn(0, 3) else {}
    memory |= {drawn(0, last): room * drawn(2, 8) // 4} if not drawn(0, 2) else {}
    return Constraints(pinned=pinned, together=together, apart=apart, memory_bytes_of=memory)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PLACERS if name != "prior"])
def test_every_property_holds_on_random_tasks(name):
    for seed in range(3):
        check(name, drawn_task(seed))


@pytest.mark.parametrize(
    ("name", "seed"), [("cost_greedy", 2748), ("lookup_greedy", 2743), *(("prior", n) for n in (2748, 2713, 741959843))]
)
def test_tasks_that_once_broke_a_property_break_none(name, seed):
    """Devices named by constraints; whole tables within a few percent of splits."""
    check(name, drawn_task(seed))


@pytest.mark.parametrize("name", ["dreamshard", "dreamshard_columns", "neuroshard"])
@pytest.mark.parametrize("task", [drawn_task(1), PlacementTask(pool_of(120), 16, 2**33)], ids=["drawn", "large"])
def test_one_thread_or_many_place_alike_to_the_bit(name, task):
    threads, placed = torch.get_num_threads(), []
    for count in (1, 4, threads):
        torch.set_num_threads(count)
        placed.append(PLACERS[name]().place(task))
    assert placed[0] == placed[1]
