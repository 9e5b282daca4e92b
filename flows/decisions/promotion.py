"""Whether a candidate becomes champion, and why, in figures."""

import math
from dataclasses import dataclass
from typing import Literal

from dreamshard.evaluation import PairedComparison


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The alias a version gets, and the sentence that says why."""

    alias: Literal["champion", "challenger"]
    reason: str


def decide(
    rival: str | None,
    against_rival: PairedComparison | None,
    best_baseline: str,
    against_baseline: PairedComparison,
    *,
    in_use: str | None = None,
    unusable: str = "",
) -> Decision:
    """Compare on the same held-out tasks: a champion must be beaten beyond doubt, the first must not lose to a rule.

    Without a champion the candidate becomes it if its mean gain over the best rule of thumb is not negative; the same
    where the champion cannot be used any more, which counts as beaten.

    Args:
        rival: the champion's version, or None where there is no champion yet.
        against_rival: the candidate's gain over that champion.
        best_baseline: the best rule of thumb on these tasks.
        against_baseline: the candidate's gain over it.
        in_use: the champion's version at the time of deciding.
        unusable: why the rival cannot be used, where it cannot.
    """
    if rival is not None and in_use not in (None, rival):
        return Decision(
            alias="challenger",
            reason=f"not compared with version {in_use}, which took the place of version {rival} in the meantime; "
            "`dreamshard evaluate` compares them, then promote",
        )
    if rival is not None and against_rival is not None:
        figures = _in_words(against_rival, f"champion version {rival}")
        if against_rival.low > 0:
            return Decision(alias="champion", reason=f"beats the champion: {figures}")
        return Decision(alias="challenger", reason=f"does not beat the champion beyond doubt: {figures}")
    figures = _in_words(against_baseline, f"{best_baseline}, the best rule of thumb")
    if rival is None and in_use is not None:
        return Decision(
            alias="challenger", reason=f"not compared with version {in_use}, the champion in use: {figures}"
        )
    first, none = ("first champion", "no champion yet")
    if rival is not None:
        why = f"champion version {rival} cannot be used ({unusable or 'it was not measured'})"
        first, none = f"{why} and counts as beaten", why
    if against_baseline.mean_gain >= 0:
        return Decision(alias="champion", reason=f"{first}: {figures}")
    return Decision(alias="challenger", reason=f"{none}, and dearer than a rule of thumb: {figures}")


def _in_words(gain: PairedComparison, other: str) -> str:
    if math.isinf(gain.mean_gain):
        who = other if gain.mean_gain > 0 else "a placement"
        return f"{who} did not fit its devices when measured" + ("" if gain.mean_gain > 0 else f", against {other}")
    saved = gain.mean_gain >= 0
    interval = "one held-out task"
    if math.isfinite(gain.low):
        ends = f"{gain.low:+.1%} to {gain.high:+.1%}" if saved else f"{_more(gain.high)} to {_more(gain.low)}"
        interval = f"95 % interval {ends}, {gain.num_tasks} held-out tasks"
    if saved:
        return f"{gain.mean_gain:+.1%} measured cost saved ({interval}) against {other}"
    return f"costs {-gain.mean_gain:.1%} more when measured ({interval}) than {other}"


def _more(gain: float) -> str:
    return f"{abs(gain):.1%} {'less' if gain > 0 else 'more'}"
