"""Whether a candidate becomes champion, and why; and what it then is in its topology."""

from dataclasses import dataclass, replace
from typing import Literal

from dreamshard.evaluation import PairedComparison
from dreamshard.recipes import RECIPES
from storage.mlflow_store import registry
from storage.mlflow_store.registry import PROVISIONAL, REPLACED, TRYOUT, Version
from storage.run_records.trainings import Training
from storage.store import Store

HIGHEST_ERROR = 0.2
"""Prediction error on held-out placements above which a version is not promoted: its search may be led astray anywhere."""

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
        rival: number of the champion in the evaluation; None if there was none.
        in_use: number of the champion when the decision was made; None if there was none.
        already_champion: whether the version was champion before the decision.
        veto: reason not to promote despite the gain; empty without one.
        provisional: the figures, if they do not show a champion to be cheaper than the best rule of thumb; empty if they do,
            or if the version beats a champion of which that was shown.
    """

    alias: Literal["champion", "challenger"]
    code: Code
    against: str = ""
    gain: PairedComparison | None = None
    variants: PairedComparison | None = None
    rival: int | None = None
    in_use: int | None = None
    already_champion: bool = False
    veto: str = ""
    provisional: str = ""

    @property
    def reason(self) -> str:
        """The decision in one sentence, for people."""
        if self.gain is None:
            return (
                f"not compared with version {self.in_use}, which replaced {self.rival} in the meantime; "
                "run `dreamshard evaluate` to compare them, then promote"
            )
        until = ", provisional until shown to be cheaper than a rule of thumb" if self.provisional else ""
        words: dict[Code, str] = {
            "beats_champion": "beats the champion",
            "replaces_provisional": f"replaces version {self.rival}, a provisional champion, without costing more",
            "not_beyond_doubt": "does not beat the champion beyond doubt",
            "champion_not_compared": f"not compared with version {self.in_use}, the champion in use",
            "better_than_baseline": f"first champion{until}",
            "worse_than_baseline": "no champion of this hardware yet, and more expensive than a rule of thumb",
        }
        figures = _figures(self.gain, self.variants, self.against)
        outcome = f"{words[self.code]}: {figures}"
        if self.already_champion:
            return f"already the champion: {outcome if self.rival else figures}"
        return f"{self.veto}; its figures: {outcome}" if self.veto else outcome


def decide(
    rival: int | None,
    against_rival: PairedComparison | None,
    best_baseline: str,
    against_baseline: PairedComparison,
    *,
    in_use: int | None = None,
    variants_of_rival: PairedComparison | None = None,
    variants_of_baseline: PairedComparison | None = None,
    is_rival_provisional: bool = False,
    splits_columns: bool = False,
) -> Decision:
    """Promote a candidate that beats the champion beyond doubt; the first champion need only match a rule of thumb.

    Without a champion, the candidate's mean gain over the best rule of thumb must not be negative; until that gain is beyond
    doubt, the champion is provisional. A candidate that beats the best rule of thumb beyond doubt replaces a provisional
    champion that costs as much or more on the mean.

    A fixed model's repeats decide. If all of them measured the same, so that they have no interval, its variants must be
    cheaper beyond doubt as well.

    Args:
        rival: number of the champion in the evaluation, or None if there was no champion.
        against_rival: the candidate's gain over that champion; None if there was none.
        best_baseline: best rule of thumb on these tasks.
        against_baseline: the candidate's gain over it.
        in_use: number of the champion now.
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
            decision, gain=against_rival, variants=variants_of_rival, against=f"champion version {rival}"
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


def find_veto(version: Version, in_use: Version | None, prediction_error: float | None) -> str:
    """Why an evaluation must not make a version champion, with the command that does; empty if there is no reason.

    A champion that a person replaced stays out of use: the same tables give the same version and the same figures, so
    the next retraining would undo the person's decision. A champion of tables that a person named is not replaced by
    one of a recipe's own tables, however well that one places them. A version that predicts badly may have placed these
    tables well by luck.

    Args:
        in_use: the champion; None if there is none.
        prediction_error: mean relative error on held-out placements; None if it is not known.
    """
    command = f"`dreamshard promote {version.uri}`"
    if REPLACED in version.tags:
        return f"taken out of use by hand at {version.tags[REPLACED]}; {command} uses it again"
    if prediction_error is not None and prediction_error > HIGHEST_ERROR:
        return (
            f"its predictions are {prediction_error:.0%} off on held-out placements, above the {HIGHEST_ERROR:.0%} at which "
            "placements of other tables can be trusted: measure more placements (--recipe, or more iterations), or look at "
            f"its report; {command} promotes it nevertheless"
        )
    if in_use is None or _is_named(version.made_of) or not _is_named(in_use.made_of):
        return ""
    return (
        f"trained on {version.made_of.source}, the tables of recipe {version.made_of.recipe.name} itself, while champion "
        f"version {in_use.number} was trained on {in_use.made_of.source}, which a user named; {command} promotes it "
        "nevertheless"
    )


def _is_named(made_of: Training) -> bool:
    """Whether a person named the tables to train on, rather than taking the recipe's own."""
    name = made_of.recipe.name
    return name not in RECIPES or made_of.source != RECIPES[name].workload.source


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a version stands after a promotion.

    Attributes:
        alias: the alias that it has; `none` for a try-out.
        words: the same for people, e.g. `champion of simulated h100 · 4 devices`.
        note: what else is to be said; empty if nothing.
    """

    alias: Literal["champion", "challenger", "none"]
    words: str
    note: str = ""


def settle(store: Store, version: Version, decision: Decision) -> Standing:
    """Make the candidate what the decision says, in its topology; the caller holds the registry's lock."""
    settings, command = store.settings, f"`dreamshard promote {version.uri}`"
    if not decision.already_champion:
        registry.set_alias(settings, version.uri, decision.alias, decision.reason, provisional=decision.provisional)
    elif decision.provisional != version.tags.get(PROVISIONAL, ""):
        registry.tag(settings, version.uri, {PROVISIONAL: decision.provisional or None})
    in_use = registry.champion(settings)
    named = "provisional champion" if decision.alias == "champion" and decision.provisional else decision.alias
    is_other = in_use is not None and in_use.model != version.model
    note = f"`champion` alone means {in_use}; {command} makes it mean this one" if is_other else ""
    return Standing(alias=decision.alias, words=f"{named} of {version.made_of.topology}", note=note)


def try_out(store: Store, version: Version, decision: Decision) -> Standing:
    """Leave all as it is, and record why; a version that was decided on before keeps its standing."""
    if "decided_by" in version.tags:
        note = f"it was decided on at {version.tags['decided_at']}"
        return Standing(alias="none", words="left as it is", note=note)
    registry.tag(store.settings, version.uri, {"reason": decision.reason, TRYOUT: "yes"})
    note = f"no version's standing changed; `dreamshard promote {version.uri}` makes it champion"
    return Standing(alias="none", words="a try-out", note=note)


def _is_shown(gain: PairedComparison, variants: PairedComparison | None) -> bool:
    """Whether the gain is beyond doubt; if every repeat measured the same, whether it is on the variants."""
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
        repeats = f"over {gain.num_repeats} interleaved repeats of this model"
        counted = repeats if gain.over == "repeats" else f"{gain.num_tasks} held-out tasks"
        interval = f"95 % interval {ends}, {counted}"
    if is_saving:
        return f"{gain.mean_gain:+.1%} measured cost saved ({interval}) against {other}"
    return f"costs {-gain.mean_gain:.1%} more when measured ({interval}) than {other}"


def _on_variants(gain: PairedComparison) -> str:
    if gain.mean_gain is None:
        return "on drifted variants a placement did not fit its devices"
    ends = "" if gain.low is None or gain.high is None else f" (95 % interval {gain.low:+.1%} to {gain.high:+.1%})"
    return f"{gain.mean_gain:+.1%} over {gain.num_tasks} drifted variants of it{ends}"


def _more(gain: float) -> str:
    return f"{abs(gain):.1%} {'less' if gain > 0 else 'more'}"
