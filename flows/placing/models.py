"""Tables of a list or of a TorchRec model, to be placed."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from dreamshard import planning
from dreamshard.constraints import Constraints
from dreamshard.files import did_you_mean
from dreamshard.tables import ModelTable, Tables
from dreamshard.workloads import ModelTables, bundled_lists, call, is_function, list_file, model_tables
from flows.runtime.sources import torchrec_bridge
from storage.store import Store


def read_model(store: Store, source: str, note: Callable[[str], None], model: str = "") -> ModelTables:
    """The tables of a list, of the model that `model.py:make_model` makes, or of any source that was ingested for a model.

    Lookups that the source does not give are from the newest ingested data set that has all its tables, otherwise by a
    Zipf law. `note` gets sentences on assumptions.

    Raises:
        ValueError: the function or the file is wrong, or there are no tables that can be planned.
    """
    lists, path = bundled_lists(), Path(source)
    ingested = store.lake.newest_dataset(model) if model else None
    read: Callable[..., ModelTables]
    if is_function(source):
        read = partial(torchrec_bridge().tables_of, call(source, "there is no model"))
    elif ingested and list_file(source) is None and ("://" in source or path.exists()):
        read = partial(model_tables, _described(store.lake.read_dataset(ingested)))
    elif path.suffix or path.is_file() or source in lists:
        read = partial(planning.read_model, source)
    else:
        raise ValueError(
            f"there is no bundled list {source!r}{did_you_mean(source, lists)}; give one of docs/own-tables.md, a "
            ".csv, .parquet or .json file, or model.py:make_model"
        )
    listed = read()
    version = store.lake.dataset_with(listed.tables) if listed.filled_in else None
    known = store.lake.read_dataset(version) if version else None
    listed = read(defaults=known) if version else listed
    for sentence in (*listed.notes, *_origin(store, version, known, listed)):
        note(sentence)
    return listed


def _described(tables: Tables) -> list[ModelTable]:
    """Ingested tables as they would be in a list."""
    columns = (tables.rows, tables.dim, tables.pooling_factor, tables.poolings)
    return [
        ModelTable(
            name=name,
            rows=rows,
            dim=dim,
            pooling_factor=pooling,
            pooling="sum" if poolings else "none",
            num_poolings=poolings or None,
        )
        for name, rows, dim, pooling, poolings in zip(tables.names, *(part.tolist() for part in columns), strict=True)
    ]


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
        unique.get(name) == rows
        for name, rows in zip(model.tables.names, model.tables.unique_rows.tolist(), strict=True)
    )
    of = f"data set {version} ({store.lake.dataset_source(version)})"
    return [f"{what}: those of {same} of {len(model)} tables are from {of}, the others have its mean reuse"]


def runnable(
    model: ModelTables, constraints: Constraints, ranks: str | None, note: Callable[[str], None]
) -> Constraints:
    """The constraints, narrowed to the sharding types that TorchRec runs for a model's tables.

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
    runnable: Constraints = narrowed
    return runnable
