"""Whether a candidate becomes champion, and why."""

from dataclasses import dataclass, replace
from typing import Literal

from dreamshard.evaluation import PairedComparison
from storage.mlflow_store.registry import REPLACED, Version

FALSE_ALARMS = 0.025
"""Largest probability that a candidate as good as a champion ever replaces it, however many nights it is compared.

Attempt `k` may use `1 / (k (k + 1))` of it, which sums up to 1. Otherwise, one of 40 nights would promote by chance."""

HIGHEST_ERROR = 0.2
"""Prediction error on held-out placements above which a version is not promoted: its search may be led astray anywhere."""

Code = Literal[
    "beats_champion",
    "replaces_provisional",
    "not_significant",
    "champion_not_compared",
    "first_champion",
    "did_not_fit",
]


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The candidate's gain over another placer.

    Attributes:
        over: the champion's version or the heuristic.
        measured: on held-out tasks, or on a fixed model and variants of it.
        attempt: number of this comparison among those with the same champion, from 1; 0 over a heuristic.
    """

    over: str
    measured: PairedComparison
    attempt: int = 0

    @property
    def false_alarms(self) -> float:
        """Probability with which an equal candidate may be promoted now: of all attempts together at most `FALSE_ALARMS`."""
        return FALSE_ALARMS / max(1, self.attempt * (self.attempt + 1))

    @property
    def is_shown(self) -> bool:
        """Whether it is significant."""
        return self.measured.is_significant(self.false_alarms)

    def __str__(self) -> str:
        gain = self.measured
        saved = "" if gain.mean_gain is None else " of the measured cost saved"
        parts = [f"{gain_text(gain)}{saved}, against {self.over}"]
        if gain.more_tasks is None:
            parts.append("only other tables could make it significant")
        elif gain.more_tasks:
            parts.append(f"about {gain.more_tasks} more tasks would make it significant")
        elif gain.is_significant() and not self.is_shown:
            parts.append(f"attempt {self.attempt} needs a {1 - 2 * self.false_alarms:.2%} interval above zero")
        return "; ".join(parts)


def gain_text(gain: PairedComparison | None) -> str:
    """A paired gain with its 95 % interval, e.g. `+4.2 % (+2.0 to +6.3)`."""
    if gain is None:
        return "-"
    if gain.mean_gain is None:
        return "fits where the other does not" if gain.fits else "did not fit"
    if gain.low is None or gain.high is None:
        return f"{100 * gain.mean_gain:+.1f} %"
    return f"{100 * gain.mean_gain:+.1f} % ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The alias that a version gets, and why.

    Attributes:
        alias: champion or challenger.
        code: rule that decided.
        gain: that it decided by; None if by neither.
        rival: number of the champion in the evaluation; None if there was none.
        champion: number of the champion when the decision was made; None if there was none.
        already_champion: whether the version was champion before the decision.
        veto: reason not to promote despite the gain; empty without one.
        provisional: the figures, if they do not show a champion to be cheaper than the best heuristic; empty if they do,
            or if the version beats a champion that is.
    """

    alias: Literal["champion", "challenger"]
    code: Code
    gain: Gain | None = None
    rival: int | None = None
    champion: int | None = None
    already_champion: bool = False
    veto: str = ""
    provisional: str = ""

    @property
    def standing(self) -> str:
        """The alias for people."""
        return "provisional champion" if self.alias == "champion" and self.provisional else self.alias

    @property
    def reason(self) -> str:
        """The decision in one sentence, for people."""
        until = ", provisional until shown to be cheaper than a heuristic" if self.provisional else ""
        words: dict[Code, str] = {
            "beats_champion": "beats the champion",
            "replaces_provisional": f"replaces version {self.rival}, a provisional champion, without costing more",
            "not_significant": "costs more than the champion"
            if self.gain and self.gain.measured.is_worse
            else "does not beat the champion significantly",
            "champion_not_compared": f"not compared with version {self.champion}, the current champion",
            "first_champion": f"first champion{until}",
            "did_not_fit": "not champion",
        }
        if self.gain is None:
            return f"{words[self.code]}; run `dreamshard evaluate` to compare them, then `register`"
        outcome = f"{words[self.code]}: {self.gain}"
        if self.already_champion:
            return f"already the champion: {outcome if self.rival else self.gain}"
        return f"{self.veto}; its figures: {outcome}" if self.veto else outcome


def decide(
    over_heuristic: Gain,
    over_rival: Gain | None = None,
    *,
    rival: int | None = None,
    champion: int | None = None,
    is_rival_provisional: bool = False,
) -> Decision:
    """Promote a candidate that beats the champion significantly; without a champion, promote the first.

    Until its gain over the best heuristic is significant, the champion is provisional. A candidate that beats the best
    heuristic significantly replaces a provisional champion that costs as much or more on average.

    Args:
        over_heuristic: the candidate's gain over the best heuristic on these tasks.
        over_rival: its gain over the champion in the evaluation; None if there was none.
        rival: number of that champion.
        champion: number of the champion now.
        is_rival_provisional: whether the champion in the evaluation is a provisional one.
    """
    decision = Decision(alias="challenger", code="champion_not_compared", rival=rival, champion=champion)
    if champion not in (None, rival):
        return decision
    doubt = "" if over_heuristic.is_shown else str(over_heuristic)
    of_heuristic = replace(decision, gain=over_heuristic, provisional=doubt)
    if over_rival is not None:
        if over_rival.is_shown:
            kept = doubt if is_rival_provisional else ""
            return replace(decision, alias="champion", code="beats_champion", gain=over_rival, provisional=kept)
        if is_rival_provisional and over_heuristic.is_shown and over_rival.measured.is_positive:
            return replace(of_heuristic, alias="champion", code="replaces_provisional")
        return replace(decision, code="not_significant", gain=over_rival)
    if not over_heuristic.measured.fits:
        return replace(of_heuristic, code="did_not_fit")
    return replace(of_heuristic, alias="champion", code="first_champion")


def find_veto(version: Version, champion: Version | None, prediction_error: float | None) -> str:
    """Why an evaluation must not make a version champion, with the command that does; empty if there is no reason.

    A champion that a person replaced stays out of use: the same tables give the same version and the same figures, so
    the next retraining would undo the person's decision. A version that predicts badly may have placed these tables well
    by luck.

    Args:
        champion: now; None if there is none.
        prediction_error: mean relative error on held-out placements; None if it is not known.
    """
    command = f"`dreamshard promote {version.uri}`"
    if REPLACED in version.tags:
        return f"replaced manually at {version.tags[REPLACED]}; {command} uses it again"
    if champion is not None and prediction_error is not None and prediction_error > HIGHEST_ERROR:
        return (
            f"its predictions are {prediction_error:.0%} off on held-out placements, above the limit of {HIGHEST_ERROR:.0%}: "
            f"measure more (--iterations, or another --recipe), or read its report; {command} promotes it anyway"
        )
    return ""
