"""What stands against a version as champion, whatever its figures: a person's decision, or whose tables it knows."""

from dreamshard.recipes import RECIPES
from storage.mlflow_store import alias_changes, registry
from storage.run_records import lineage
from storage.run_records.lineage import Origin
from storage.settings import Settings
from storage.store import open_store


def against(version: str, in_use: str | None) -> str:
    """Why an evaluation must not make a version champion, and what does all the same; empty where nothing is against it.

    A champion that a person replaced stays out of use: the same tables give the same version and the same figures, so the
    next retraining would undo what the person did. And who named tables to train on does not want the placer of a recipe's
    own list instead, however well it places that list.

    Args:
        in_use: the champion's version; None where there is none.
    """
    change = alias_changes.replaced_by_hand(registry.version_tags(Settings.load(), version))
    if change is not None:
        return f"taken out of use by hand at {change.at}; `dreamshard promote {version}` uses it again"
    own, other = (
        lineage.origin_of(open_store(), version),
        None if in_use is None else lineage.origin_of(open_store(), in_use),
    )
    if own is not None and other is not None and _is_named(other) and not _is_named(own):
        return (
            f"trained on {own.source}, the tables of recipe {own.recipe} itself, while champion version {in_use} was "
            f"trained on {other.source}, which somebody named; `dreamshard promote {version}` uses it all the same"
        )
    return ""


def _is_named(origin: Origin) -> bool:
    """Whether somebody said which tables to train on: they are not those of the recipe."""
    return origin.recipe not in RECIPES or origin.source != RECIPES[origin.recipe]().workload.source
