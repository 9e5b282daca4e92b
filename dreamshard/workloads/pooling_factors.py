"""Mean lookups per sample of a model's tables, given by table or by feature."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True)
class LookedUp:
    """What is known of how a table is looked up.

    Attributes:
        names: that the table goes by.
        features: that look it up.
        pooling_factor: lookups per sample; None if nobody counted them.
        is_counted: whether its lookups in a batch are known, which tell the pooling factor.
    """

    names: tuple[str, ...]
    features: tuple[str, ...]
    pooling_factor: float | None = None
    is_counted: bool = False


def pooling_factors(
    tables: Sequence[LookedUp], given: Mapping[str, float]
) -> tuple[list[float | None], list[LookedUp]]:
    """Lookups per sample of each table, None where its counted lookups tell, and the tables for which some are assumed.

    Args:
        given: by name of a table, or of a feature in all tables that it looks up; features without one count 1.

    Raises:
        ValueError: a name is unknown, or may be a table's or a feature's.
    """
    features = {feature for table in tables for feature in table.features}
    _check(tables, given, features)
    found: list[float | None] = []
    assumed = []
    for table in tables:
        named = [name for name in table.names if name in given and name not in features]
        missing = [feature for feature in table.features if feature not in given]
        if named:
            found.append(float(given[named[0]]))
        elif len(missing) < len(table.features) or (table.pooling_factor is None and not table.is_counted):
            found.append(sum(float(given.get(feature, 1.0)) for feature in table.features))
            assumed += [table] if missing else []
        else:
            found.append(table.pooling_factor)
    return found, assumed


def _check(tables: Sequence[LookedUp], given: Mapping[str, float], features: set[str]) -> None:
    names = [name for table in tables for name in table.names]
    for key in given:
        if key not in features and key not in names:
            close = get_close_matches(key, {*features, *names}, n=3)
            hint = f"did you mean {', '.join(close)}?" if close else f"tables are called {', '.join(names[:5])}"
            raise ValueError(
                f"a pooling factor is given for {key!r}, which is no table or feature of the model; {hint}"
            )
        unlike = [table for table in tables if key in table.names and table.features != (key,)]
        if unlike and key in features:
            raise ValueError(
                f"a pooling factor is given for {key!r}, which is a table with the features "
                f"{', '.join(unlike[0].features[:5])} and also a feature, so it is unclear which is meant; give the factors "
                "of its features by other names, or rename the table"
            )
