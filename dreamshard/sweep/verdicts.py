"""Which placer to trust: this project's against the cheapest other one of each setting, in words."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dreamshard.sweep.ablations import ABLATIONS
from dreamshard.sweep.cell import CellResult
from dreamshard.sweep.summary import Costs, Gain, Setting, costs_of, gain_over

WHOLE, COLUMNS = "dreamshard", "dreamshard_columns"
"""This project's placer of whole tables, and the one that may split them by columns."""

_SUFFIX = "_columns"
_MOST_LISTED = 4  # settings; of more it is said that they are all, or all others
_JUDGED = ("sizes", "transfer", "measurements", "workloads", "real_ranks")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """This project's placer against the cheapest other one in a setting.

    Attributes:
        rival: the cheapest other placer, chosen on these very tasks; None where none has a mean.
        saved: what `ours` saves over it; all None where ours has no mean.
        fits: whether `ours` found a placement for every task.
    """

    setting: Setting
    ours: str
    rival: str | None
    saved: Gain
    fits: bool = True


def compare(results: Sequence[CellResult]) -> list[Comparison]:
    """One comparison for each setting and each of `WHOLE` and `COLUMNS` that was placed in it beside others of its kind."""
    rows: dict[Setting, dict[str, list[CellResult]]] = defaultdict(lambda: defaultdict(list))
    for each in results:
        if each.experiment in _JUDGED:
            rows[Setting.of(each)][each.placer].append(each)
    return [
        _comparison(setting, ours, {name: costs_of(own) for name, own in placers.items()})
        for ours in (WHOLE, COLUMNS)
        for setting, placers in rows.items()
        if ours in placers and any(_is_rival(name, ours) for name in placers)
    ]


def sentences(comparisons: Sequence[Comparison]) -> Iterable[str]:
    """How often ours is cheapest; then, for each experiment and dims, where it is and where not."""
    for ours in dict.fromkeys(each.ours for each in comparisons):
        own = [each for each in comparisons if each.ours == ours]
        counted = Counter(_standing(each) for each in own)
        what = "whole tables" if ours == WHOLE else "tables split by columns"
        yield (
            f"**{what.capitalize()}.** Of {len(own)} settings, `{ours}` is the cheapest beyond doubt in {counted['ours']}, "
            f"as good as the cheapest other placer of {what} in {counted['equal']}, and beaten in {counted['rival']}"
            + (f", and without a placement for some task in {counted['no room']}." if counted["no room"] else ".")
        )
        yield ""
        for experiment, dims in dict.fromkeys((each.setting.experiment, each.setting.dims) for each in own):
            part = [each for each in own if (each.setting.experiment, each.setting.dims) == (experiment, dims)]
            yield f"- {experiment}, {dims}: {'; '.join(_clauses(part))}."
        yield ""


def label(setting: Setting) -> str:
    """What distinguishes a setting from others of the same experiment and dims."""
    if setting.experiment == "measurements":
        return f"{setting.budget} measurements"
    if setting.experiment == "workloads":
        return setting.source
    return setting.placed if setting.trained == setting.placed else f"{setting.trained} to {setting.placed}"


def percent(gain: Gain, *, sign: int = 1) -> str:
    """`4.3 % (3.1 to 5.2)`.

    Args:
        sign: -1 for what is lost instead of gained.
    """
    if gain.mean is None or gain.low is None or gain.high is None:
        return "no mean"
    low, high = sorted((100 * sign * gain.low, 100 * sign * gain.high))
    return f"{100 * sign * gain.mean:.1f} % ({low:.1f} to {high:.1f})"


def _is_rival(name: str, ours: str) -> bool:
    """Whether a placer places tables as `ours` does, whole or by columns, and is no part of it."""
    return name != ours and name.endswith(_SUFFIX) == ours.endswith(_SUFFIX) and name not in ABLATIONS


def _comparison(setting: Setting, ours: str, costs: dict[str, Costs]) -> Comparison:
    others = {name: cost for name, cost in costs.items() if _is_rival(name, ours) and np.isfinite(cost).all()}
    rival = min(others, key=lambda name: float(others[name].mean()), default=None)
    nothing = Gain(mean=None, low=None, high=None)
    return Comparison(
        setting=setting,
        ours=ours,
        rival=rival,
        saved=nothing if rival is None else gain_over(costs[ours], others[rival]),
        fits=bool(np.isfinite(costs[ours]).all()),
    )


def _standing(comparison: Comparison) -> str:
    saved = comparison.saved
    if saved.low is None or saved.high is None:
        return "no room" if comparison.rival is not None else "alone" if comparison.fits else "nobody"
    return "ours" if saved.low > 0 else "rival" if saved.high < 0 else "equal"


def _clauses(comparisons: Sequence[Comparison]) -> Iterable[str]:
    by_standing: dict[str, list[Comparison]] = defaultdict(list)
    for each in comparisons:
        by_standing[_standing(each)].append(each)
    name = comparisons[0].ours
    if own := by_standing["rival"]:
        yield "**a rival is cheaper** at " + ", ".join(
            f"{label(each.setting)} (trust {each.rival}; {name} costs {percent(each.saved, sign=-1)} more)"
            for each in own
        )
    if own := by_standing["no room"]:
        yield f"**{name} found no placement for some task** at " + ", ".join(
            f"{label(each.setting)} (trust {each.rival})" for each in own
        )
    if own := by_standing["alone"]:
        yield "no other placer fits all tasks at " + ", ".join(label(each.setting) for each in own)
    if own := by_standing["nobody"]:
        yield "no placer of this kind fits all tasks at " + ", ".join(label(each.setting) for each in own)
    clear = {f"{name} is the cheapest": by_standing["ours"], "no clear difference": by_standing["equal"]}
    for what, own in sorted(clear.items(), key=lambda each: len(each[1])):  # the longest list is shortened, at the end
        if own and (own is not max(clear.values(), key=len) or len(own) <= _MOST_LISTED):
            yield f"{what} at {_by_rival(own)}"
        elif own:
            yield f"{what} {'everywhere' if len(own) == len(comparisons) else 'elsewhere'} ({_savings(own)})"


def _by_rival(comparisons: Sequence[Comparison]) -> str:
    """`20x4, 50x4 (saves 1.2 to 3.4 % over paper)`: the settings of each rival, with the range of means over them."""
    return ", ".join(
        f"{', '.join(label(each.setting) for each in own)} (saves {_range(own)} over {rival})"
        for rival, own in _grouped(comparisons)
    )


def _savings(comparisons: Sequence[Comparison]) -> str:
    """`saves 1.2 to 3.4 % over paper, 2.0 % (1.0 to 3.0) over rnn`: the same without the settings."""
    return "saves " + ", ".join(f"{_range(own)} over {rival}" for rival, own in _grouped(comparisons))


def _grouped(comparisons: Sequence[Comparison]) -> Iterable[tuple[str | None, list[Comparison]]]:
    groups: dict[str | None, list[Comparison]] = defaultdict(list)
    for each in comparisons:
        groups[each.rival].append(each)
    return groups.items()


def _range(comparisons: Sequence[Comparison]) -> str:
    """The range of the means, or a single one with its interval."""
    means = sorted(100 * each.saved.mean for each in comparisons if each.saved.mean is not None)
    return percent(comparisons[0].saved) if len(comparisons) == 1 else f"{means[0]:.1f} to {means[-1]:.1f} %"
