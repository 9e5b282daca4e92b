"""Whether a candidate becomes champion, and why, in figures."""

from dataclasses import dataclass
from typing import Literal

from dreamshard.evaluation import PairedComparison


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The alias a version gets, and the sentence that says why."""

    alias: Literal["champion", "challenger"]
    reason: str


def decide(
    rival: str | None, against_rival: PairedComparison | None, best_baseline: str, against_baseline: PairedComparison
) -> Decision:
    """Compare on the same held-out tasks: a champion must be beaten beyond doubt, a rule of thumb must not win.

    Args:
        rival: the champion's version, or None where there is no champion yet.
        against_rival: the candidate's gain over that champion.
        best_baseline: the best rule of thumb on these tasks.
        against_baseline: the candidate's gain over it.
    """
    if rival is not None and against_rival is not None:
        figures = f"{_percent(against_rival)} against champion version {rival}"
        if against_rival.low > 0:
            return Decision(alias="champion", reason=f"beats the champion: {figures}")
        return Decision(alias="challenger", reason=f"does not beat the champion beyond doubt: {figures}")
    figures = f"{_percent(against_baseline)} against {best_baseline}, the best rule of thumb"
    if against_baseline.high < 0:
        return Decision(alias="challenger", reason=f"no champion yet, but worse than a rule of thumb: {figures}")
    return Decision(alias="champion", reason=f"first champion: {figures}")


def _percent(gain: PairedComparison) -> str:
    return (
        f"{gain.mean_gain:+.1%} measured cost saved (95 % interval {gain.low:+.1%} to {gain.high:+.1%}, "
        f"{gain.num_tasks} held-out tasks)"
    )
