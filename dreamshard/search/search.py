"""From starting placements to the best one that is found, level by level of how tables may be sharded.

First tables are whole, or in as few ranges of columns as memory allows; then in ranges of columns; then sharded in every way
that is allowed. A higher level is taken only if it saves more than the cost model errs about shards, so a search that may do
more never costs more. The result is never predicted to cost more than a start.
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from dreamshard.baselines import no_room, packed, rule_placements
from dreamshard.cost_model.compiled import DeviceLaw, Floats
from dreamshard.legality import violation
from dreamshard.placement import ON_ONE_DEVICE, Placement, ShardingType
from dreamshard.placer import NoPlacementError
from dreamshard.search.annealing import ON_DEVICES, Found, Ints, Menu, alone_ms, anneal, balanced_ms, greedy, priced
from dreamshard.search.column_packing import packed_columns
from dreamshard.search.options import ALL, COLUMNS, WHOLE, Options
from dreamshard.search.search_costs import SearchCosts
from dreamshard.tasks import PlacementTask

_LONG = 3  # starts that are improved by a long search
_TRIAL = 4  # of the changes of a search, one in so many for each of several starts
_PREFIXES = 12  # numbers of tables that are spread together
_SPLIT_SHARES = (0.5, 0.25, 0.1)  # of an even device's cost or width, from which on a table is split


def default_moves(task: PlacementTask) -> int:
    """Changes that a search tries at each level."""
    return 8_000 + 40 * len(task.tables)


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
    law, found = costs.law(), None
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
        starts_of_level = [best, *(_split_starts if level == COLUMNS else _spread_starts)(options, law)]
        other = _improved(menu, law, starts_of_level, moves)
        if other.cost_ms < best.cost_ms * (1 - gain):
            best = other
    plans = [options.placement(best, joined=joined) for joined in (True, False)]
    if not task.constraints.places_freely:
        plans = [plan for plan in plans if not violation(task, plan)]
    if not plans:
        raise NoPlacementError(
            f"found no placement of {task.name} that respects its constraints; loosen them, or give devices more memory"
        )
    return min(plans, key=lambda plan: float(costs.predict(task, plan).overall_ms()))


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
    ranked = sorted(tried, key=lambda each: each.cost_ms)[:_LONG]
    return min(
        (anneal(menu, law, each, moves, seed) for seed, each in enumerate(ranked)), key=lambda each: each.cost_ms
    )


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


def _spread_starts(options: Options, law: DeviceLaw) -> list[Found]:
    """Greedy placements with more and more tables spread in one way, then in a second one besides.

    One table alone never pays for a collective that others could share, so they are spread together: those with the
    smallest gradients are copied first, the most expensive are cut into rows first.
    """
    menu = options.up_to(ALL)
    alone, starts = alone_ms(menu, law), []
    chosen, least = menu.first_option[:-1].copy(), np.inf  # from whole tables on
    kinds: tuple[ShardingType, ...] = ("data_parallel", "row_wise", "table_row_wise", "grid_shard")
    for kind in kinds:
        able = {i: options.number_of(i, kind) for i in range(len(chosen))}
        items = np.array([i for i, option in able.items() if option is not None], np.int64)
        if not len(items):
            continue
        of = np.array([able[i] for i in items.tolist()])
        order = np.argsort(menu.copy_bytes[of] if kind == "data_parallel" else -alone[items], kind="stable")
        before = chosen
        for count in np.unique(np.geomspace(1, len(items), _PREFIXES).round().astype(np.int64)).tolist():
            trial = before.copy()
            trial[items[order[:count]]] = of[order[:count]]
            first = np.argsort(np.where(menu.spread[trial] != ON_DEVICES, -np.inf, -alone), kind="stable")
            start = greedy(menu._replace(first_option=np.append(trial, menu.first_option[-1])), law, first)
            if start is not None and start.cost_ms < least:
                chosen, least = trial, start.cost_ms
                starts.append(start)
    return starts[-2:]


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
            by_origin.append([priced(menu, law, options.found(device)) for device in given])
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
            exact = priced(menu, law, options.found(packed(task).numpy()))
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
