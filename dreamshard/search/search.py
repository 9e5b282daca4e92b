"""From starting placements to the best one that is found, level by level of how tables may be sharded.

First tables are whole, or in as few ranges of columns as memory allows; then in ranges of columns; then sharded in every way
that is allowed. A higher level is taken only if it saves more than the cost model errs about shards, so a search that may do
more never costs more. The result is never predicted to cost more than a start.
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from dreamshard.cost_model.compiled import DeviceLaw, Floats, Ints
from dreamshard.placement import ON_ONE_DEVICE, Placement, ShardingType
from dreamshard.placer import NoPlacementError
from dreamshard.search.annealing import (
    HOT,
    ON_DEVICES,
    ON_HOST,
    Found,
    Menu,
    alone_ms,
    anneal,
    balanced_ms,
    greedy,
    priced,
)
from dreamshard.search.baselines import no_room, packed, rule_placements
from dreamshard.search.columns import packed_columns
from dreamshard.search.costs import SearchCosts
from dreamshard.search.options import ALL, COLUMNS, WHOLE, Options
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask

_LONG = ((0, HOT), (1, HOT), (0, 2 * HOT), (2, HOT))
"""Long searches: from which start, the best first, and the first temperature."""
_TRIAL = 4  # of the changes of a search, one in so many for each of several starts
_PREFIXES = 12  # numbers of tables that are spread together
_SPLIT_SHARES = (0.5, 0.25, 0.1)  # of an even device's cost or width, from which on a table is split


def default_moves(task: PlacementTask) -> int:
    """Changes that a search tries at each level."""
    return 6_000 + 30 * len(task.tables)


def highest_level(task: PlacementTask, *, columns: bool = True) -> int:
    """The highest level that the task's constraints allow."""
    constraints = task.constraints
    types = constraints.all_sharding_types
    if types - set(ON_ONE_DEVICE):
        return ALL
    return COLUMNS if columns and "column_wise" in types else WHOLE


def search(
    task: PlacementTask, costs: SearchCosts, starts: Sequence[Ints], moves: int | None = None, most: int | None = None
) -> Placement:
    """The best placement found.

    Args:
        task: to be placed.
        costs: of its shards.
        starts: `[T]` devices of whole tables, legal or not, besides greedy and the rules of thumb.
        moves: changes tried at each level; None for the default.
        most: the highest level; None for what the constraints allow.

    Raises:
        NoPlacementError: nothing fits the devices' memory, or the constraints cannot be met.
    """
    moves = default_moves(task) if moves is None else moves
    most = highest_level(task) if most is None else most
    law, found = costs.law(spread=most == ALL), None
    for caching in (False, True) if task.constraints.caching else (False,):
        if not found:
            options = Options.of(task, costs.devices_per_host, costs.loads, most, caching=caching)
            found = _best_starts(task, options, law, starts, most, caching=caching)
    if not found:
        return _packed(task, most)
    best = _improved(options.up_to(WHOLE), law, found, moves)
    for level, gain in ((COLUMNS, costs.column_gain), (ALL, costs.spread_gain)):
        if level > most or (options.levels[:, level] == options.levels[:, level - 1]).all():
            continue
        menu = options.up_to(level)
        if level == COLUMNS and gain > 0 and best.cost_ms * (1 - gain) < balanced_ms(menu, law):
            continue  # not even perfect balance would gain as much
        others = _split_starts(options, law) if level == COLUMNS else _spread_starts(options, law, best)
        starts_of_level = [best, *others]
        other = _improved(menu, law, starts_of_level, moves)
        if other.cost_ms < best.cost_ms * (1 - gain):
            best = other
    plan, apart = (options.placement(best, joined=joined) for joined in (True, False))
    if plan == apart:
        return _checked(task, [plan])[0]
    return min(_checked(task, [plan, apart]), key=lambda each: float(costs.predict(task, each).overall_ms()))


def _checked(task: PlacementTask, plans: list[Placement]) -> list[Placement]:
    """The legal ones.

    Raises:
        NoPlacementError: none is.
    """
    legal = plans if task.constraints.places_freely else [plan for plan in plans if not violation(task, plan)]
    if not legal:
        raise NoPlacementError(
            f"found no placement of {task.name} that respects its constraints; loosen them, or give devices more memory"
        )
    return legal


def _by_width(task: PlacementTask, alone: Floats) -> Ints:
    """`[T]` devices: the widest tables on the first ones, each with an even share of the cost of single tables.

    A kernel gives every row of a device as many threads as the widest needs, so narrow tables are cheap among themselves.
    """
    order = np.lexsort((-alone, -task.tables.dim.numpy()))
    before = np.cumsum(alone[order]) - alone[order] / 2
    device = np.empty(len(order), np.int64)
    device[order] = np.minimum((before / alone.sum() * task.num_devices).astype(np.int64), task.num_devices - 1)
    return device


def _improved(menu: Menu, law: DeviceLaw, starts: Sequence[Found], moves: int) -> Found:
    """The best of long searches from the best results of short ones from every start."""
    tried = [anneal(menu, law, each, moves // _TRIAL) if len(starts) > 1 else each for each in starts]
    ranked = sorted(tried, key=lambda each: each.cost_ms)
    longs = (
        anneal(menu, law, ranked[min(rank, len(ranked) - 1)], moves, seed, hot)
        for seed, (rank, hot) in enumerate(_LONG, 1)
    )
    return min(longs, key=lambda each: each.cost_ms)


def _split_starts(options: Options, law: DeviceLaw) -> list[Found]:
    """Greedy placements with tables split that have more than a share of a device's cost or width."""
    menu = options.up_to(COLUMNS)
    first, num_devices = menu.first_option[:-1], menu.allowed.shape[1]
    width = menu.loads[menu.load[menu.first_range[first]], law.width]
    alone = alone_ms(menu, law)
    share = np.maximum(width / max(width.sum(), 1e-12), alone / alone.sum()) * num_devices  # [I] of an even device
    ranges = np.diff(menu.first_range)
    found = []
    for most in _SPLIT_SHARES:
        chosen = first.copy()
        for i in np.flatnonzero(share > most).tolist():
            own = np.arange(first[i], menu.last_option[i])
            enough = own[ranges[own] >= share[i] / most]
            chosen[i] = enough[0] if len(enough) else own[-1]
        start = greedy(menu._replace(first_option=np.append(chosen, menu.first_option[-1])), law, np.argsort(-share))
        if start is not None and (chosen != first).any():
            found.append(start)
    return found


def _spread_starts(options: Options, law: DeviceLaw, best: Found) -> list[Found]:
    """Placements with more and more tables spread in one way, then in a second one besides: from whole tables on, and in the
    best placement so far.

    One table alone never pays for a collective that others could share, so they are spread together: those with the
    smallest gradients are copied first, the most expensive are cut into rows first.
    """
    menu = options.up_to(ALL)
    alone, hosts = alone_ms(menu, law), menu.allowed.shape[1] // menu.per_host
    whole = Found(menu.first_option[:-1].copy(), best.place, np.inf)
    starts: list[Found] = []
    for anew, start in ((True, whole), (False, best)):
        kinds: tuple[ShardingType, ...] = ("data_parallel", "row_wise", "table_row_wise", "grid_shard")
        for kind in kinds:
            able = options.first_of(kind)
            items = np.flatnonzero(able >= 0)
            order = np.argsort(
                menu.copy_bytes[able[items]] if kind == "data_parallel" else -alone[items], kind="stable"
            )
            before = start
            for count in (
                np.unique(np.geomspace(1, len(items), _PREFIXES).round().astype(np.int64)) if len(items) else ()
            ):
                chosen = items[order[:count]]
                option, place = before.option.copy(), before.place.copy()
                option[chosen] = able[chosen]
                if anew:
                    of_menu = menu._replace(first_option=np.append(option, menu.first_option[-1]))
                    first = np.where(menu.spread[option] != ON_DEVICES, -np.inf, -alone)
                    trial = greedy(of_menu, law, np.argsort(first, kind="stable"))
                else:
                    first_host = np.arange(count)[:, None] if menu.spread[able[chosen[0]]] == ON_HOST else 0
                    place[chosen] = (first_host + np.arange(place.shape[1])) % max(hosts, 1)
                    trial = priced(menu, law, option, place)
                if trial is not None and trial.cost_ms < start.cost_ms:
                    start = trial
        if start.cost_ms < np.inf and start is not best:
            starts.append(start)
    return starts


def _best_starts(
    task: PlacementTask, options: Options, law: DeviceLaw, starts: Sequence[Ints], most: int, *, caching: bool
) -> list[Found]:
    """The cheapest legal start of each origin; none if nothing fits."""
    menu = options.up_to(WHOLE)
    alone = alone_ms(menu, law)
    by_cost = np.argsort(-alone, kind="stable")
    by_size = np.argsort(-menu.size[menu.first_range[menu.first_option[:-1]]], kind="stable")
    by_origin = [] if caching else [[greedy(menu, law, by_cost)]]
    if options.are_whole and not caching:
        rules = [device.numpy() for device in rule_placements(task)]
        for given in (starts, rules, [_by_width(task, alone[options.item])]):
            by_origin.append([priced(menu, law, *options.whole(device)) for device in given])
    legal = [[each for each in found if each is not None] for found in by_origin]
    best = [
        min(found, key=lambda each: each.cost_ms) for found in legal if found
    ]  # of each origin, so that they differ
    for level in range(WHOLE, most + 1):
        if not best:
            # smallest first leaves them in device memory where some tables must be cached
            tried = [greedy(options.up_to(level), law, order) for order in (by_size[::-1], by_cost, by_size)]
            best = [each for each in tried if each is not None]
    if not best and options.are_whole:
        with suppress(NoPlacementError):
            exact = priced(menu, law, *options.whole(packed(task).numpy()))
            best = [] if exact is None else [exact]
    return best


def _packed(task: PlacementTask, most: int) -> Placement:
    """What an exact search finds, where no start is legal.

    Raises:
        NoPlacementError: nothing.
    """
    if most == ALL:
        raise no_room(task)
    return Placement.whole(packed(task), task.num_devices) if most == WHOLE else packed_columns(task)
