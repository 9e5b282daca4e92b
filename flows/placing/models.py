"""Tables of a list or of a TorchRec model, to be placed."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from dreamshard import planning
from dreamshard.constraints import Constraints
from dreamshard.files.text import did_you_mean
from dreamshard.tables import Tables
from dreamshard.workloads import ModelTables, bundled_lists, call, is_function
from flows.runtime.sources import torchrec_bridge
from storage.store import Store


def read_model(store: Store, source: Path, note: Callable[[str], None]) -> ModelTables:
    """The tables of a file, of a bundled list by its name, or of the model that `model.py:make_model` makes.

    Lookups that the source does not give are from the newest ingested data set that has all its tables, otherwise by a
    Zipf law. `note` gets sentences on assumptions.

    Raises:
        ValueError: the function or the file is wrong, or there are no tables that can be planned.
    """
    lists = bundled_lists()
    read: Callable[..., ModelTables]
    if is_function(str(source)):
        read = partial(torchrec_bridge().tables_of, call(str(source), "there is no model"))
    elif source.suffix or source.is_file() or str(source) in lists:
        read = partial(planning.read_model, source)
    else:
        raise ValueError(
            f"there is no bundled list {str(source)!r}{did_you_mean(str(source), lists)}; give one of docs/own-tables.md, a "
            ".csv, .parquet or .json file, or model.py:make_model"
        )
    model = read()
    version = store.lake.dataset_with(model.tables) if model.filled_in else None
    known = store.lake.read_dataset(version) if version else None
    model = read(defaults=known) if version else model
    for sentence in (*model.notes, *_origin(store, version, known, model)):
        note(sentence)
    return model


def _origin(store: Store, version: str | None, known: Tables | None, model: ModelTables) -> list[str]:
    """A sentence on the origin of the columns that the source lacks, if it lacks any."""
    if not model.filled_in:
        return []
    what = f"{', '.join(model.filled_in)} are not given"
    if version is None or known is None:
        return [
            f"{what} and no ingested data set has all these tables, so they are filled in by a Zipf law; "
            "`dreamshard ingest` with --batches counts a model's"
        ]
    unique = dict(zip(known.names, known.unique_rows.tolist(), strict=True))
    same = sum(
        unique.get(name) == own for name, own in zip(model.tables.names, model.tables.unique_rows.tolist(), strict=True)
    )
    of = f"data set {version} ({store.lake.dataset_source(version)})"
    return [f"{what}: those of {same} of {len(model)} tables are from {of}, the others have its mean reuse"]


def runnable(
    model: ModelTables, constraints: Constraints, ranks: str | None, note: Callable[[str], None]
) -> Constraints:
    """The constraints, narrowed to ways to shard that TorchRec runs a model's tables in.

    Args:
        model: a list's tables are only narrowed if TorchRec is to run the plan.
        constraints: of the plan.
        ranks: device type of TorchRec's ranks, `cuda` or `cpu`; None if the plan is not for TorchRec, or not yet.
        note: gets sentences for people.
    """
    if ranks is None and not any(detail.collection for detail in model.details):
        return constraints
    narrowed, notes = torchrec_bridge().narrowed(
        constraints, model.by_name, device_type=ranks or "cuda", widen=ranks is None
    )
    for sentence in notes:
        note(sentence)
    own: Constraints = narrowed
    return own
