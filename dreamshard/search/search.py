"""From starting placements to the best one that is found, combination by combination of sharding types.

How tables are sharded decides which collectives a step has, and no change of one table adds or removes a collective that
others share. So each combination of sharding types that pays if devices could be perfectly even is searched by itself: greedy
starts, then annealing of the best of them. A search that may do more runs the searches that may do less, so its result hardly
ever costs more; only very large tasks are not searched without split tables as well. Combinations that could not pay, even on
perfectly even devices, are left out.

A search of `n` changes first does all that a search of `n / 4` does, in rounds; the next round goes on from the best
results, except for a combination that two rounds hardly improved. So four times the changes never give a dearer placement,
except by the share that more sharding types must save.

Annealing lowers the slowest device's cost. Among the cheapest results, the one of the least mean cost over the cost model's
errors is taken, which is what a plan states.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from dreamshard.cost_model.compiled import WIDE_DIMS, Ints, computes_ms
from dreamshard.search.annealing import EVENNESS, ON_ALL, ON_DEVICES, Found, IsLate, Menu, anneal, never, priced
from dreamshard.search.costs import CostModel
from dreamshard.search.options import WORTH, ShardingOptions
from dreamshard.search.packing import no_placement, packed, packed_columns
from dreamshard.search.starting import ANYTHING, EvenSplit, Target, balanced, greedy, split_evenly
from dreamshard.tables import ON_ONE_DEVICE, ON_ONE_HOST, SHARDING_TYPES, SPLIT_BY_COLUMNS, Placement, ShardingType
from dreamshard.tasks import NoPlacementError, PlacementTask, violation

_FEW_CELLS = 20_000
"""Tables times devices up to which combinations without split tables are searched, too, more starts are annealed, and starts
for tight memory are tried even if others fit."""
_STARTS = 12  # of a combination: which of them ends best, its cost hardly tells
_KEPT = 3  # starts that share a round's changes; with more, the first round is longer
_PATIENCE = 2  # rounds in a row that may improve a combination of sharding types by less than `WORTH`
_FEWEST_MOVES = 14_000  # of a search, and about those of its first round
_RUN = 4  # smallest searches in one run of annealing: several runs end better than a long one
_HOPELESS = 0.15  # share of the cost above the best, beyond which a start or a result is dropped
_MARGINS = ((0.5, 0.5), (0.15, 0.15), (0.05, 0.05), (0.5, 0.02))
"""Above perfect balance, within which every device's own cost and its width are to stay; some starts use a width alone."""
_LIMIT = 0.6  # of an even device, that a range of a table on single devices may have
_TIGHT = 0.75  # of all memory that tables take, from which annealing lets devices pass their capacity on the way,
_OVERFULL = 0.1  # by this share
_HALVINGS = (*range(7), 62)  # of a device's memory: each range of a table fits that share if it can
_BYTE_PRICES = 4.0 ** np.arange(-12, 13)  # of all bytes by the options on average, over the cost of all tables
_cost = attrgetter("cost_ms")
Types = frozenset[ShardingType]
_FAMILIES: tuple[Types, ...] = tuple(map(frozenset, (ON_ONE_DEVICE, ON_ONE_HOST, ("row_wise",), ("data_parallel",))))
"""Types that share a collective: tables, and ranges of their columns, which let devices be even."""


def default_moves(task: PlacementTask, more: int = 0) -> int:
    """The most changes that a search tries for each combination of sharding types."""
    return _FEWEST_MOVES + max(100 * len(task.tables), more)


def search(
    task: PlacementTask, costs: CostModel, moves: int, *, columns: bool = True, is_late: IsLate = never
) -> Placement:
    """The best placement found.

    Args:
        task: to be placed.
        costs: of its shards.
        moves: the most changes tried for each combination of sharding types; more if it has many starts.
        columns: whether tables may be split if memory does not require it.
        is_late: ends the search with the best placement so far; until then it changes nothing.

    Raises:
        NoPlacementError: nothing fits the devices' memory, or the constraints cannot be met.
    """
    exploration = _Exploration(task, costs, moves, is_late)
    exploration.explore(ShardingOptions.of(task, costs, columns=columns))
    candidates, best, best_ms, most = exploration.candidates, None, math.inf, (False, 1)
    fit_alone = any(types <= set(ON_ONE_DEVICE) for types in exploration.results)
    if task.constraints.caching and costs.prices_caches and not (candidates and is_late()):
        bar_ms = exploration.first_ms * (1 - WORTH)
        exploration = replace(exploration, results={}, bar_ms=bar_ms)  # whose options have other numbers
        exploration.explore(ShardingOptions.of(task, costs, columns=columns, caching=True))
    if not fit_alone and not (candidates and is_late()):  # greedy starts may miss what exact packing finds
        try:
            best = _packed(task)
            best_ms = float(costs.predict(best).overall_ms())
        except NoPlacementError as error:
            if not candidates and task.constraints.caching and not costs.prices_caches:
                raise NoPlacementError(
                    f"found no placement of {task.name} in device memory, and this cost model prices no caches; allow more "
                    "memory, or use a preset with host_bandwidth (--hardware h100 --placer prior)"
                ) from error
            if not candidates:
                raise
    for options, found in sorted(candidates, key=lambda candidate: candidate[0].complexity):
        near = found.cost_ms <= exploration.least_ms * (1 + _HOPELESS)
        worth = WORTH if options.complexity > most else 0.0
        for placement in dict.fromkeys(options.placement(found, joined=joined) for joined in (False, True) if near):
            overall_ms = float(costs.predict(placement).overall_ms())
            if overall_ms < best_ms * (1 - worth) and not violation(task, placement):
                best, best_ms, most = placement, overall_ms, options.complexity
    if best is not None:
        return best
    raise NoPlacementError(
        f"found no placement of {task.name} that respects its constraints; loosen them, or give devices more memory"
    )


def _packed(task: PlacementTask) -> Placement:
    """The exact packing of columns, or of whole tables; raises a NoPlacementError if constraints allow none."""
    by_columns = "column_wise" in task.constraints.all_sharding_types
    placement = packed_columns(task) if by_columns else Placement.whole(packed(task), task.num_devices)
    if violation(task, placement):
        raise no_placement(task)
    return placement


class _Result(NamedTuple):
    """Placements of a combination of sharding types, cheapest first, and how many last rounds hardly improved it."""

    options: ShardingOptions
    kept: list[Found]
    stalled: int


@dataclass
class _Exploration:
    """Searches of one task, by the sharding types that each may use.

    Attributes:
        results: of the combinations that were searched and fit.
        candidates: with their options, the best of each combination after each round that improved it.
        least_ms: cost of the best of them; `first_ms` after the first round.
        least_start_ms: cost of the best greedy start.
        bar_ms: cost that a result must not exceed to be searched further.
    """

    task: PlacementTask
    costs: CostModel
    moves: int
    is_late: IsLate
    results: dict[Types, _Result] = field(default_factory=dict)
    candidates: list[tuple[ShardingOptions, Found]] = field(default_factory=list)
    least_ms: float = np.inf
    first_ms: float = np.inf
    least_start_ms: float = np.inf
    bar_ms: float = np.inf

    @property
    def cells(self) -> int:
        """Tables times devices."""
        return len(self.task.tables) * self.task.num_devices

    def explore(self, every: ShardingOptions) -> None:
        """Search by each combination of the types of `every`: single types, then the cheapest on perfectly even devices."""
        families = [family & every.types for family in _FAMILIES if family & every.types]
        counts = range(1, len(families) + 1)
        wanted = [frozenset().union(*group) for count in counts for group in combinations(families, count)]
        if self.cells <= _FEW_CELLS:
            wanted += [group - set(SPLIT_BY_COLUMNS) for group in wanted]
        wanted += [frozenset([kind]) for kind in ON_ONE_DEVICE]
        restricted = [options for types in wanted if (options := every.only(types)) is not None]
        able = [*{one.fields.number.tobytes(): one for one in restricted}.values()]
        rounds = [self.moves]
        while rounds[0] >= 4 * _FEWEST_MOVES:
            rounds.insert(0, rounds[0] // 4)
        first, *later = np.diff(rounds, prepend=0).tolist()
        for are_mixed in (False, True):
            some = [options for options in able if (len(options.types) > 1) == are_mixed]
            if self.results and self.is_late():  # so that a late search has a placement too
                return
            splits = [_even_splits(options) for options in some]
            bounds_ms = [(1 - self.costs.unevenness) * min(map(_cost, one)) for one in splits]
            for n in np.argsort(bounds_ms, kind="stable"):
                if not (self.results and self.is_late()) and bounds_ms[n] < self.least_ms * (1 - WORTH):
                    self._search(some[n], splits[n], first)
        self.first_ms = self.least_ms
        for number, moves in enumerate(later, 1):
            for options, kept, stalled in [*self.results.values()]:
                distinct = {_cost(start): start for start in (*kept, *self._simpler(options))}
                starts = sorted(distinct.values(), key=_cost)[: max(_KEPT - number, 1)]
                may_improve = stalled < _PATIENCE or _improves(starts, kept)
                if may_improve and starts[0].cost_ms <= min(self.least_ms * (1 + WORTH), self.bar_ms):
                    found = self._annealed(options, starts, moves, number)
                    self._keep(options, found, 0 if _improves(found, starts) else stalled + 1)

    def _search(self, options: ShardingOptions, splits: Sequence[EvenSplit], moves: int) -> None:
        """Anneal the best starts, unless that is hopeless, and keep the results."""
        if starts := self._starts(options, splits):
            may_pay = _is_tight(options) or any(map(self._has_hope, starts))
            moves = moves * max(len(starts), _KEPT) // _KEPT
            self._keep(options, self._annealed(options, starts, moves, 0) if may_pay else starts)

    def _keep(self, options: ShardingOptions, new: Sequence[Found], stalled: int = 0) -> None:
        """Keep the placements that meet all constraints, if there are any."""
        known = self.results[options.types].kept if options.types in self.results else []
        is_free = self.task.constraints.places_freely
        legal = [one for one in new if is_free or not violation(self.task, options.placement(one, joined=False))]
        if kept := sorted([*legal, *known], key=_cost):
            self.results[options.types] = _Result(options, kept, stalled)
            self.least_ms = min(self.least_ms, kept[0].cost_ms)
            if not known or kept[0].cost_ms < known[0].cost_ms:
                self.candidates.append((options, kept[0]))

    def _simpler(self, options: ShardingOptions) -> list[Found]:
        """The best results with fewer types, as placements by these options; of the most types, the best of all too.

        A combination that is unlucky in the first round is left out of the others, but the one of all types goes on.
        """
        types = options.types
        simpler = [types - {single} for whole, single in (ON_ONE_DEVICE, ON_ONE_HOST) if {whole, single} <= types]
        known = [self.results[others] for others in simpler if others in self.results]
        if self.results and types == max(self.results, key=len):
            known.append(min(self.results.values(), key=lambda result: result.kept[0].cost_ms))
        return [start for result in known for start in options.translated(result.options, result.kept[0])]

    def _starts(self, options: ShardingOptions, splits: Sequence[EvenSplit]) -> list[Found]:
        """The best greedy starts, and results with fewer types; none if simpler results do."""
        types = options.types
        used = {split.option.tobytes(): split.option for split in splits if _uses_all(options, split.option)}
        if not used and any(known <= types for known in self.results):
            return []
        quick = [(start, option) for option in used.values() for start in _quick_starts(options, option)]
        starts = [start for start, _ in quick]
        for start, option in sorted(quick, key=lambda pair: pair[0].cost_ms)[:1]:
            if self._has_hope(start):
                starts += _starts_within_targets(options, option, self.is_late)
        starts = sorted(starts, key=_cost)[: _STARTS if self.cells <= _FEW_CELLS else _KEPT]
        self.least_start_ms = min([self.least_start_ms, *map(_cost, starts)])
        starts += self._simpler(options)
        if not starts or (self.cells <= _FEW_CELLS and _is_tight(options)):
            starts += _tight_starts(self.task, options, self.is_late)
        return starts

    def _has_hope(self, start: Found) -> bool:
        """Whether a start is near the best one, so that annealing it may pay."""
        return start.cost_ms <= self.least_start_ms * (1 + _HOPELESS)

    def _annealed(self, options: ShardingOptions, starts: Sequence[Found], moves: int, number: int) -> Sequence[Found]:
        """The best that a round of this number finds from each start."""
        menu, is_tight = options.menu, _is_tight(options)
        may_move = len(menu.scope) > len(menu.allowed) or (self.task.num_devices > 1 and (menu.scope != ON_ALL).any())
        if not may_move:
            return starts
        runs, results = [*product(starts, (0.0, _OVERFULL) if is_tight else (0.0,))], list[Found]()
        count = len(runs) * max(1, moves // (_RUN * default_moves(self.task) * len(runs)))
        for n in range(count):
            again, which = divmod(n, len(runs))
            (start, over), evenness = runs[which], EVENNESS[(which + again) % len(EVENNESS)]
            results.append(anneal(menu, start, moves // count, n + count * number, over, evenness, self.is_late))
        return results


def _improves(new: Sequence[Found], known: Sequence[Found]) -> bool:
    """Whether some placement costs less than all that are known, by more than `WORTH`."""
    return bool(min(map(_cost, new)) < min(map(_cost, known)) * (1 - WORTH))


def _is_tight(options: ShardingOptions) -> bool:
    return int(options.task.table_bytes.sum()) > _TIGHT * int(options.menu.capacity.sum())


def _uses_all(options: ShardingOptions, option: Ints) -> bool:
    """Whether some options use a type of every family."""
    used = {SHARDING_TYPES[kind] for kind in options.fields.kind[option]}
    return all(family & used for family in _FAMILIES if family & options.types)


def _even_splits(options: ShardingOptions) -> list[EvenSplit]:
    """The best option of each table if devices could be perfectly even, without and with a limit of a range on a device.

    They are computed from tables on single devices, and from all tables on several, by each such type that there is.
    """
    menu, shared = options.menu, options.types - set(ON_ONE_DEVICE)
    first = menu.first_option[:-1]
    if not shared:
        return [balanced(menu)]
    able = [options.first_of(kind) for kind in sorted(shared)]
    starts = [first, *(np.where(option >= 0, option, first) for option in able)]
    free = min((split_evenly(menu, option) for option in starts), key=_cost)
    limited = split_evenly(menu, free.option, Target(_LIMIT * free.even.own_ms, _LIMIT * free.even.width))
    return [free, limited]


def _from_options(options: ShardingOptions, option: Ints) -> Menu:
    """The menu with only these options and those after them on as many devices."""
    menu = options.menu
    ends = np.sort(np.append(np.flatnonzero(np.diff(menu.scope)) + 1, menu.first_option))
    last = ends[np.searchsorted(ends, option, side="right")]
    return menu._replace(first_option=np.append(option, menu.first_option[-1]), last_option=last)


def _quick_starts(options: ShardingOptions, option: Ints) -> list[Found]:
    """Greedy placements by options from given ones on: one free of targets, one with all devices about as wide, and, of whole
    tables, the best of those that balance compute within a limit of the width.
    """
    menu = _from_options(options, option)
    even = balanced(menu).even
    about = Target(max(even.own_ms, menu.alone_ms.max()), (1 + _MARGINS[1][1]) * even.width)
    within = [
        start
        for _, of_width in _MARGINS
        if options.types == {"table_wise"}
        for start in _greedy(menu, Target(math.inf, (1 + of_width) * even.width))
    ]
    return _greedy(menu, ANYTHING) + _greedy(menu, about) + sorted(within, key=_cost)[:1]


def _starts_within_targets(options: ShardingOptions, option: Ints, is_late: IsLate) -> list[Found]:
    """Greedy placements with ranges of columns up to some width, and all devices within targets.

    A kernel gives every row of a device as many threads as the widest needs, so it can pay to split all tables alike.
    """
    if not options.types & set(SPLIT_BY_COLUMNS):
        return []
    menu, columns = _from_options(options, option), options.fields.end - options.fields.start
    found = list[Found]()
    for most in (math.inf, *WIDE_DIMS):
        own = menu._replace(first_option=np.append(options.first_within(menu, most, columns), menu.first_option[-1]))
        even = balanced(own).even
        targets = [Target(even.own_ms * (1 + of_own), even.width * (1 + of_width)) for of_own, of_width in _MARGINS]
        found += [start for target in targets if not is_late() for start in _greedy(own, target)]
    return found


def _greedy(menu: Menu, target: Target) -> list[Found]:
    """The greedy placement of spread tables, then of the others by their cost in their first option, if all fit.

    Within a limit of the width, this is without the all-to-all (as in NeuroShard, arXiv 2305.01868, algorithm 1).
    """
    first, is_limited = menu.first_option[:-1], target.width < target.own_ms == np.inf
    work = computes_ms(menu.law, menu.loads[menu.first_row]).sum(axis=1) if is_limited else menu.alone_ms
    work = work * np.diff(menu.first_range)[first]
    order = np.argsort(-np.where(menu.scope[first] != ON_DEVICES, np.inf, work), kind="stable")
    start = greedy(menu, order, target)
    return [] if start is None else [start]


def _tight_starts(task: PlacementTask, options: ShardingOptions, is_late: IsLate) -> list[Found]:
    """Greedy placements by the options that cost least with a price per byte, the widest ranges that fit first."""
    menu = options.menu
    first, most = menu.first_option[:-1], np.diff(menu.first_option)
    of_range, item = (np.repeat(np.arange(len(each)), each) for each in (np.diff(menu.first_range), most))
    cost_ms, size = (np.bincount(of_range, each * menu.blocks) for each in (menu.row_ms[menu.load], menu.size))
    if np.minimum.reduceat(size, first).sum() > menu.capacity.sum():
        return []
    range_bytes = np.maximum.reduceat(menu.size, menu.first_range[:-1])
    finest = np.minimum.reduceat(range_bytes, first)[item]
    by_size, by_cost = (
        np.argsort(-each, kind="stable") for each in (menu.size[menu.first_range[first]], menu.alone_ms)
    )
    tried, found = set[bytes](), list[Found | None]()
    for halvings in _HALVINGS:
        able = range_bytes <= np.maximum(menu.capacity.max() >> halvings, finest)
        for price in _BYTE_PRICES:
            if any(found) and is_late():
                break
            rating = np.where(able, cost_ms / cost_ms.sum() + price * size / size.sum(), np.inf)
            best = np.append(np.lexsort((rating, item))[first], menu.first_option[-1])
            # smallest first leaves them in device memory where some tables must be cached
            for order in (by_size[::-1], by_cost, by_size) if best.tobytes() not in tried else ():
                found.append(greedy(menu._replace(first_option=best), order))
            tried.add(best.tobytes())
        if legal := [each for each in found if each is not None]:
            return sorted(legal, key=_cost)[:_KEPT]
    if options.are_whole:
        with suppress(NoPlacementError):
            exact = priced(menu, *options.whole(packed(task).numpy()))
            return [] if exact is None else [exact]
    return []
