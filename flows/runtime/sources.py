"""Sources of tables to ingest or place: those that the library reads, and models by a person's functions (TorchRec)."""

import importlib
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType

from dreamshard import planning
from dreamshard.constraints import Constraints
from dreamshard.files import did_you_mean
from dreamshard.tables import ModelTable, Tables
from dreamshard.workloads import (
    ModelTables,
    Workload,
    WorkloadConfig,
    bundled_lists,
    call,
    change_token,
    is_function,
    list_file,
    model_tables,
    open_workload,
)
from storage.store import Store


def token_of(workload: WorkloadConfig) -> str:
    """Identity of a source's content now; functions are called for it, files only listed.

    Raises:
        ValueError: there is no such source, or it cannot be read.
    """
    return _opened(workload, "").token if is_function(workload.source) else change_token(workload.source)


def opened_source(workload: WorkloadConfig, token: str) -> Workload:
    """The source, opened once per process for all of its tables.

    Args:
        token: `token_of` the source, so that a changed one is opened again.

    Raises:
        ValueError: the source is invalid, or a function of a model returned something else in another process.
    """
    if not is_function(workload.source):
        return _opened(workload, token)
    model = _opened(workload, "")
    if model.token != token:
        raise ValueError(
            f"{workload.source} or its batches gave other tables in this process than where the ingestion began; make the "
            "functions return the same each time"
        )
    return model


@lru_cache(maxsize=1)
def _opened(workload: WorkloadConfig, token: str) -> Workload:
    opened: Workload = (
        torchrec_bridge().open_model(workload) if is_function(workload.source) else open_workload(workload)
    )
    return opened


close = _opened.cache_clear
"""Forget what is open, so that it takes no memory and is read again next time."""


def torchrec_bridge() -> ModuleType:
    """The package `dreamshard.torchrec`, which takes seconds to import.

    Raises:
        ValueError: TorchRec cannot be imported.
    """
    try:
        return importlib.import_module("dreamshard.torchrec")
    except ImportError as error:
        raise ValueError(
            f"torchrec cannot be imported ({error}); `pip install --no-deps torchrec==1.8.0`, or give a list of its tables"
        ) from error


def read_model(store: Store, source: str, note: Callable[[str], None], model: str = "") -> ModelTables:
    """The tables of a list, of the model that `model.py:make_model` makes, or of any source that was ingested for a model.

    Lookups that the source does not give are from the newest ingested dataset that has all its tables, otherwise by a
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
            f"there is no bundled list {source!r}{did_you_mean(source, lists)}; give one of docs/train.md, a "
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
    missing = ", ".join(model.filled_in)
    if version is None or known is None:
        return [
            f"assumed by a Zipf law: {missing}. To count a model's real lookups, run `dreamshard ingest` with --batches"
        ]
    pairs = ({*zip(tables.names, tables.unique_rows.tolist(), strict=True)} for tables in (known, model.tables))
    counts = f"{len(set.intersection(*pairs))} of {len(model)} tables"
    source = store.lake.dataset_source(version)
    return [f"{missing} of {counts} are from dataset {version} ({source}); any others have its mean reuse"]


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
    if ranks is None and not any(detail.module_class for detail in model.details):
        return constraints
    narrowed: Constraints
    narrowed, notes = torchrec_bridge().narrowed(
        constraints, model.by_name, device_type=ranks or "cuda", widen=ranks is None
    )
    for sentence in notes:
        note(sentence)
    return narrowed
