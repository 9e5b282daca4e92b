"""Whether a candidate becomes champion, and why."""

from dataclasses import dataclass, replace
from typing import Literal

from dreamshard.evaluation import PairedComparison
from flows.decisions.promotion_veto import Veto
from storage.mlflow_store.version_names import number_of

Code = Literal[
    "beats_champion",
    "replaces_provisional",
    "not_beyond_doubt",
    "champion_changed",
    "champion_not_compared",
    "better_than_baseline",
    "worse_than_baseline",
]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The alias that a version gets, and why.

    Attributes:
        alias: champion or challenger.
        code: rule that decided.
        against: champion's version or rule of thumb that the candidate was compared with; empty if with neither.
        gain: the candidate's gain over it: on held-out tasks, or on the model of a fixed one.
        variants: of a fixed model, the same on drifted variants of it.
        rival: version of the champion in the evaluation; None where there was none.
        in_use: champion's version when the decision was made; None where there was none.
        already_champion: whether the version was champion before the decision.
        veto: reason not to promote despite the gain.
        provisional: the figures, if they do not show a champion to be cheaper than the best rule of thumb; empty if they do,
            or if the version beats a champion of which that was shown.
    """

    alias: Literal["champion", "challenger"]
    code: Code
    against: str = ""
    gain: PairedComparison | None = None
    variants: PairedComparison | None = None
    rival: str | None = None
    in_use: str | None = None
    already_champion: bool = False
    veto: Veto | None = None
    provisional: str = ""

    @property
    def reason(self) -> str:
        """The decision in one sentence, for people."""
        if self.gain is None:
            return (
                f"not compared with version {_number(self.in_use)}, which replaced {_number(self.rival)} in the meantime; "
                "run `dreamshard evaluate` to compare them, then promote"
            )
        figures = self._figures
        outcome = f"{self._outcome}: {figures}"
        if self.already_champion:
            return f"already the champion: {outcome if self.rival else figures}"
        return outcome if self.veto is None else f"{self.veto.sentence}; its figures: {outcome}"

    @property
    def _figures(self) -> str:
        return "" if self.gain is None else _figures(self.gain, self.variants, self.against)

    @property
    def _outcome(self) -> str:
        if self.code == "beats_champion":
            return "beats the champion"
        if self.code == "replaces_provisional":
            return f"replaces version {_number(self.rival)}, a provisional champion, without costing more on the mean"
        if self.code == "not_beyond_doubt":
            return "does not beat the champion beyond doubt"
        if self.code == "champion_not_compared":
            return f"not compared with version {_number(self.in_use)}, the champion in use"
        if self.code == "better_than_baseline":
            until = ", provisional until shown to be cheaper than a rule of thumb" if self.provisional else ""
            return f"first champion{until}"
        return "no champion of this hardware yet, and more expensive than a rule of thumb"


def decide(
    rival: str | None,
    against_rival: PairedComparison | None,
    best_baseline: str,
    against_baseline: PairedComparison,
    *,
    in_use: str | None = None,
    variants_of_rival: PairedComparison | None = None,
    variants_of_baseline: PairedComparison | None = None,
    is_rival_provisional: bool = False,
    splits_columns: bool = False,
) -> Decision:
    """Promote a candidate that beats the champion beyond doubt; the first champion need only match a rule of thumb.

    Without a champion, the candidate's mean gain over the best rule of thumb must not be negative; until that gain is beyond
    doubt, the champion is provisional. A candidate that beats the best rule of thumb beyond doubt replaces a provisional
    champion that costs as much or more on the mean.

    A fixed model's repeats decide. Where all of them measured the same, so that they have no interval, its variants must be
    cheaper beyond doubt as well.

    Args:
        rival: version of the champion in the evaluation, or None where there was no champion.
        against_rival: the candidate's gain over that champion; None if there was none.
        best_baseline: best rule of thumb on these tasks.
        against_baseline: the candidate's gain over it.
        in_use: version of the champion now.
        variants_of_rival: of a fixed model, the candidate's gain over the champion on its variants.
        variants_of_baseline: the same over the rule of thumb.
        is_rival_provisional: whether that champion is a provisional one.
        splits_columns: whether the candidate split tables by columns, which no rule of thumb does.
    """
    decision = Decision(alias="challenger", code="champion_changed", rival=rival, in_use=in_use)
    if rival is not None and in_use not in (None, rival):
        return decision
    over_rule = f"{best_baseline}, the best rule of thumb"
    if splits_columns:
        over_rule += ", which keeps whole the tables that this version splits"
    is_shown = _is_shown(against_baseline, variants_of_baseline)
    doubt = "" if is_shown else _figures(against_baseline, variants_of_baseline, over_rule)
    of_rule = replace(
        decision, gain=against_baseline, variants=variants_of_baseline, against=over_rule, provisional=doubt
    )
    if rival is not None and against_rival is not None:
        of_rival = replace(
            decision, gain=against_rival, variants=variants_of_rival, against=f"champion version {_number(rival)}"
        )
        if _is_shown(against_rival, variants_of_rival):
            kept = doubt if is_rival_provisional else ""
            return replace(of_rival, alias="champion", code="beats_champion", provisional=kept)
        if is_rival_provisional and is_shown and against_rival.is_positive:
            return replace(of_rule, alias="champion", code="replaces_provisional")
        return replace(of_rival, code="not_beyond_doubt")
    if rival is None and in_use is not None:
        return replace(of_rule, code="champion_not_compared")
    if against_baseline.is_positive:
        return replace(of_rule, alias="champion", code="better_than_baseline")
    return replace(of_rule, code="worse_than_baseline")


def _number(version: str | None) -> str:
    return "none" if version is None else str(number_of(version))


def _is_shown(gain: PairedComparison, variants: PairedComparison | None) -> bool:
    """Whether the gain is beyond doubt; where every repeat measured the same, whether it is on the variants."""
    exact = gain.over == "repeats" and gain.low is None and gain.is_positive
    return gain.is_beyond_doubt or (exact and variants is not None and variants.is_beyond_doubt)


def _figures(gain: PairedComparison, variants: PairedComparison | None, other: str) -> str:
    figures = _in_words(gain, other)
    return figures if variants is None else f"{figures}; {_on_variants(variants)}"


def _in_words(gain: PairedComparison, other: str) -> str:
    if gain.mean_gain is None:
        return (
            f"{other} did not fit its devices when measured"
            if gain.fits
            else f"a placement did not fit its devices when measured, against {other}"
        )
    is_saving = gain.mean_gain >= 0
    if gain.is_same_placement:
        return f"the same placement of this model as {other}"
    interval = "one held-out task" if gain.over == "tasks" else "every repeat measured the same"
    if gain.low is not None and gain.high is not None:
        ends = f"{gain.low:+.1%} to {gain.high:+.1%}" if is_saving else f"{_more(gain.high)} to {_more(gain.low)}"
        interval = f"95 % interval {ends}, {_counted(gain)}"
    if is_saving:
        return f"{gain.mean_gain:+.1%} measured cost saved ({interval}) against {other}"
    return f"costs {-gain.mean_gain:.1%} more when measured ({interval}) than {other}"


def _counted(gain: PairedComparison) -> str:
    if gain.over == "repeats":
        return f"over {gain.num_repeats} interleaved repeats of this model"
    return f"{gain.num_tasks} held-out tasks"


def _on_variants(gain: PairedComparison) -> str:
    if gain.mean_gain is None:
        return "on drifted variants a placement did not fit its devices"
    ends = "" if gain.low is None or gain.high is None else f" (95 % interval {gain.low:+.1%} to {gain.high:+.1%})"
    return f"{gain.mean_gain:+.1%} over {gain.num_tasks} drifted variants of it{ends}"


def _more(gain: float) -> str:
    return f"{abs(gain):.1%} {'less' if gain > 0 else 'more'}"
