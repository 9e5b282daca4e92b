"""Reasons not to promote a version automatically, however good its figures are."""

from dataclasses import dataclass

from dreamshard.recipes import RECIPES
from storage.mlflow_store import registry
from storage.mlflow_store.aliases import REPLACED
from storage.mlflow_store.version_names import number_of
from storage.run_records import lineage
from storage.run_records.lineage import Origin
from storage.store import Store

HIGHEST_ERROR = 0.2
"""Prediction error on held-out placements above which a version is not promoted: its search may be led astray anywhere."""


@dataclass(frozen=True, kw_only=True)
class Veto:
    """A reason not to promote a version.

    Attributes:
        version: version that is not promoted.
        replaced_at: time when a person replaced it as champion; None if nobody did.
        prediction_error: mean relative error on held-out placements; None if that is not the reason.
        origin: origin of the version: a recipe's own tables.
        champion: version of the champion.
        champion_origin: origin of the champion: tables that a person named.
    """

    version: str
    replaced_at: str | None = None
    prediction_error: float | None = None
    origin: Origin | None = None
    champion: str | None = None
    champion_origin: Origin | None = None

    @property
    def sentence(self) -> str:
        """The reason for people, with the command that promotes the version nevertheless."""
        command = f"`dreamshard promote {self.version}`"
        if self.prediction_error is not None:
            return (
                f"its predictions are {self.prediction_error:.0%} off on held-out placements, above the "
                f"{HIGHEST_ERROR:.0%} at which placements of other tables can be trusted: measure more placements (--recipe, "
                f"or more iterations), or look at its report; {command} promotes it nevertheless"
            )
        if self.origin is None or self.champion_origin is None:
            return f"taken out of use by hand at {self.replaced_at}; {command} uses it again"
        return (
            f"trained on {self.origin.source}, the tables of recipe {self.origin.recipe} itself, while champion version "
            f"{number_of(str(self.champion))} was trained on {self.champion_origin.source}, which a user named; "
            f"{command} promotes it nevertheless"
        )


def find_veto(store: Store, version: str, in_use: str | None, prediction_error: float | None) -> Veto | None:
    """Why an evaluation must not make a version champion; None if there is no reason.

    A champion that a person replaced stays out of use: the same tables give the same version and the same figures, so
    the next retraining would undo the person's decision. A champion of tables that a person named is not replaced by
    one of a recipe's own tables, however well that one places them. A version that predicts badly may have placed these
    tables well by luck.

    Args:
        in_use: version of the champion; None where there is none.
        prediction_error: mean relative error on held-out placements; None if it is not known.
    """
    replaced_at = registry.version_tags(store.settings, version).get(REPLACED)
    if replaced_at is not None:
        return Veto(version=version, replaced_at=replaced_at)
    if prediction_error is not None and prediction_error > HIGHEST_ERROR:
        return Veto(version=version, prediction_error=prediction_error)
    own, other = lineage.origin_of(store, version), None if in_use is None else lineage.origin_of(store, in_use)
    if own is None or other is None or _is_named(own) or not _is_named(other):
        return None
    return Veto(version=version, origin=own, champion=in_use, champion_origin=other)


def _is_named(origin: Origin) -> bool:
    """Whether a person named the tables to train on, rather than taking the recipe's own."""
    return origin.recipe not in RECIPES or origin.source != RECIPES[origin.recipe].workload.source
