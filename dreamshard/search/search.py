"""From starting placements to the best one that is found, level by level of how tables may be sharded.

First tables are whole, or in as few ranges of columns as memory allows; then in ranges of columns; then sharded in every way
that is allowed. A higher level is taken only if it saves more than the cost model errs about shards, so a search that may do
more never costs more. The result is never predicted to cost more than a start. Annealing lowers the slowest device's cost;
whether its result or a start is taken is decided by the mean over the cost model's errors, which annealing makes more of.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter

import numpy as np
import torch

from dreamshard.costs import DeviceCosts
from dreamshard.placement import ON_ONE_DEVICE, Placement, ShardingType
from dreamshard.placer import NoPlacementError
from dreamshard.search.annealing import ON_ALL, ON_DEVICES, ON_HOST, Found, Menu, anneal, priced, state_of
from dreamshard.search.baselines import rule_placements
from dreamshard.search.costs import CostModel
from dreamshard.search.options import ALL, COLUMNS, WHOLE, ShardingOptions
from dreamshard.search.packing import no_room, packed, packed_columns
from dreamshard.search.starting import ANYTHING, Spread, Target, balanced, greedy, spread_evenly
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask

_TRIAL = 4  # of the changes of a search, one in so many for each of several starts
_MARGINS = ((0.5, 0.5), (0.15, 0.15), (0.05, 0.05), (0.5, 0.01))
"""Above perfect balance, within which every device's own cost and its width are to stay."""
_WIDTH = 1.2  # of an even device's, that a greedy start keeps to
_WIDEST_RANGES = (2**30, 64, 32)  # columns
_KEPT = 2  # placements with split tables from which the search goes on
_LIMITS = (0.6, 0.4, 1.0)  # of an even device, that a range of a table on single devices may have
_cost = attrgetter("cost_ms")
IsLate = Callable[[], bool]


def default_moves(task: PlacementTask) -> int:
    """Changes that a search tries at each level."""
    return 2_000 + 10 * len(task.tables)


def highest_level(task: PlacementTask, columns: bool) -> int:
    """The highest level that the task's constraints allow; `columns` if memory need not require them."""
    types = task.constraints.all_sharding_types
    if types - set(ON_ONE_DEVICE):
        return ALL
    return COLUMNS if columns and "column_wise" in types else WHOLE


def search(task: PlacementTask, costs: CostModel, moves: int, most: int, is_late: IsLate = lambda: False) -> Placement:
    """The best placement found.

    Args:
        task: to be placed.
        costs: of its shards.
        moves: changes tried at each level.
        most: the highest level.
        is_late: ends the search with the best placement so far; until then it changes nothing.

    Raises:
        NoPlacementError: nothing fits the devices' memory, or the constraints cannot be met.
    """
    found: list[Found] = []
    for caching in (False, True) if task.constraints.caching else (False,):
        if not found:
            options = ShardingOptions.of(task, costs, most, caching=caching)
            found = _best_starts(task, options, most, caching=caching)
    if not found and most == ALL:
        raise no_room(task)
    if not found:  # only an exact search may
        return Placement.whole(packed(task), task.num_devices) if most == WHOLE else packed_columns(task)
    menu = options.up_to(WHOLE)
    best = _least_expected(menu, [*found, _improved(menu, found, moves, is_late)], costs.spread)
    for level, gain in ((COLUMNS, costs.column_gain), (ALL, costs.spread_gain)):
        if is_late() or level > most or (options.levels[:, level] == options.levels[:, level - 1]).all():
            continue
        menu = options.up_to(level)
        if level == COLUMNS and gain > 0 and best.cost_ms * (1 - gain) < balanced(menu).cost_ms:
            continue  # not even perfect balance would gain as much
        others = _split_starts(options, menu) if level == COLUMNS else _spread_starts(options, best, moves, is_late)
        other = _improved(menu, [best, *others], 2 * moves, is_late, searches=2)
        if other.cost_ms < best.cost_ms * (1 - gain):
            best = other
    joined, apart = (options.placement(best, joined=each) for each in (True, False))
    is_cheaper = joined != apart and float(costs.predict(joined).device_ms().max()) < best.cost_ms
    for plan in (joined, apart) if is_cheaper else (apart,):
        if task.constraints.places_freely or not violation(task, plan):
            return plan
    raise NoPlacementError(
        f"found no placement of {task.name} that respects its constraints; loosen them, or give devices more memory"
    )


def _least_expected(menu: Menu, found: Sequence[Found], spread: float) -> Found:
    """The one of the least mean cost over the cost model's errors: several devices about as slow cost more than one."""
    own_ms = torch.tensor(np.array([state_of(menu, each.option, each.place).own_ms for each in found]))  # [N, D]
    waits_ms = torch.tensor([each.cost_ms for each in found]) - own_ms.amax(1)
    costs = DeviceCosts((own_ms + waits_ms[:, None])[..., None] * torch.eye(4)[0], spread)
    return found[int(costs.overall_ms().argmin())]


def _improved(menu: Menu, starts: Sequence[Found], moves: int, is_late: IsLate, searches: int = 1) -> Found:
    """The best of long searches from the best results of short ones."""
    tried = [anneal(menu, each, moves // _TRIAL) for each in starts if not is_late()] if len(starts) > 1 else starts
    ends = sorted(tried or starts, key=_cost)[:searches]
    longer = (anneal(menu, ends[n % len(ends)], moves, seed=n + 1) for n in range(searches) if not is_late())
    return min(longer, key=_cost, default=ends[0])


def _split_starts(options: ShardingOptions, menu: Menu) -> list[Found]:
    """Placements with no range wider than some number of columns, and all devices within a target.

    A kernel gives every row of a device as many threads as the widest needs, so it can pay to split all tables alike.
    """
    found = []
    for widest in _WIDEST_RANGES:
        first = options.first_within(menu, widest)
        own = menu._replace(first_option=np.append(first, menu.first_option[-1]))
        own_ms, width = balanced(own).even
        work = own.alone_ms * np.diff(menu.first_range)[first]
        order = np.argsort(-np.where(menu.spread[first] != ON_DEVICES, np.inf, work), kind="stable")
        targets = [Target(own_ms * (1 + of_own), width * (1 + of_width)) for of_own, of_width in _MARGINS]
        found += [start for target in targets if (start := greedy(own, order, target))]
    return sorted(found, key=_cost)[:_KEPT]


def _spread_starts(options: ShardingOptions, best: Found, moves: int, is_late: IsLate) -> list[Found]:
    """Placements with tables spread as they would be if devices could be perfectly even.

    The others are split by columns, and tables on hosts are on as many hosts as balance needs.
    """
    menu = options.up_to(ALL)
    chosen: dict[bytes, Spread] = {}
    kinds: tuple[ShardingType, ...] = ("data_parallel", "row_wise", "table_row_wise", "grid_shard")
    for kind in kinds:
        able, limit = options.first_of(kind), ANYTHING
        for share in _LIMITS:
            each = spread_evenly(menu, np.where(able >= 0, able, menu.first_option[:-1]), limit)
            if (menu.spread[each.option] != ON_DEVICES).any() and each.cost_ms < best.cost_ms:
                chosen[each.option.tobytes()] = each
            limit = Target(share * each.even.own_ms, share * each.even.width)
    found: list[tuple[Found, Menu]] = []
    elsewhere = np.flatnonzero(np.append(menu.spread, ON_ALL) != ON_HOST)  # options
    for each in chosen.values():
        on_hosts = np.minimum(elsewhere[np.searchsorted(elsewhere, each.option)], menu.first_option[1:])
        on_devices, columns = menu.spread[each.option] == ON_DEVICES, options.up_to(COLUMNS).last_option
        last = np.where(on_devices, columns, np.maximum(on_hosts, each.option + 1))
        own = menu._replace(first_option=np.append(each.option, menu.first_option[-1]), last_option=last)
        if not is_late():
            found += [(anneal(own, start, moves // _TRIAL), own) for start in _split_starts(options, own)]
    found.sort(key=lambda each: each[0].cost_ms)
    return [_improved(own, [start], moves, is_late) for start, own in found[:_KEPT]]


def _best_starts(task: PlacementTask, options: ShardingOptions, most: int, *, caching: bool) -> list[Found]:
    """The cheapest legal start of each origin; none if nothing fits."""
    menu = options.up_to(WHOLE)
    alone = menu.alone_ms
    by_cost = np.argsort(-alone, kind="stable")
    by_size = np.argsort(-menu.size[menu.first_range[menu.first_option[:-1]]], kind="stable")
    by_origin: list[Sequence[Found | None]] = []
    if not caching:
        own_ms, width = balanced(menu).even
        narrow = greedy(menu, by_cost, Target(max(own_ms, alone.max()), _WIDTH * width))
        by_origin += [[greedy(menu, by_cost)], [narrow]]
        if options.are_whole:
            by_origin.append([priced(menu, *options.whole(device.numpy())) for device in rule_placements(task)])
    legal = [[each for each in found if each is not None] for found in by_origin]
    best = [min(found, key=_cost) for found in legal if found]  # of each origin, so that they differ
    for level in range(WHOLE, most + 1):
        if not best:
            # smallest first leaves them in device memory where some tables must be cached
            tried = [greedy(options.up_to(level), order) for order in (by_size[::-1], by_cost, by_size)]
            best = [each for each in tried if each is not None]
    if not best and options.are_whole:
        with suppress(NoPlacementError):
            exact = priced(menu, *options.whole(packed(task).numpy()))
            best = [] if exact is None else [exact]
    return best
