"""A model's embedding configs as a JSON file, which needs no TorchRec to be read.

A list of objects with the fields of `EmbeddingBagConfig` (`name`, `num_embeddings`, `embedding_dim`, `feature_names`,
`data_type`, `pooling`), and optionally `module_path`, `is_weighted`, `optimizer`, `pooling_factor`, and the statistics of a
list of tables.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from dreamshard.files.bounds import MOST_COLUMNS
from dreamshard.files.foreign import brief
from dreamshard.model_tables import ModelTable, ModelTables, Pooling, model_tables, shown
from dreamshard.tables import Optimizer, Precision, Tables
from dreamshard.workloads.table_list import BIN_COLUMNS, Record, check_records, json_objects

_RENAMED = {"num_embeddings": "rows", "embedding_dim": "dim"}
_STATISTICS = ("pooling_factor", "lookups_per_sample_by_feature", "lookups", "unique_rows", *BIN_COLUMNS)
_USED = frozenset(
    (
        *("name", "rows", "dim", "feature_names", "data_type", "pooling", "module_path", "is_weighted", "optimizer"),
        *_STATISTICS,
    )
)


def read_configs(
    path: str | Path, pooling_factors: Mapping[str, float] | None = None, defaults: Tables | None = None
) -> ModelTables:
    """The tables of a JSON file of embedding configs.

    Args:
        path: the file; the module's docstring describes it.
        pooling_factors: as for `model_tables`, instead of the file's own.
        defaults: as for `model_tables`.

    Raises:
        ValueError: the file is missing or not such JSON, or a config is wrong, which the message names.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"there is no file {file}, so there are no tables to read; check the path")
    entries = [{_RENAMED.get(key, key): value for key, value in entry.items()} for entry in json_objects(file)]
    places = [f"{file}, table {i + 1}" for i in range(len(entries))]
    details = [_table(where, entry) for where, entry in zip(places, entries, strict=True)]
    records: list[Record] = [
        (where, entry | {"name": f"{detail.module_path}.{detail.name}", "dim": detail.planned_dim})
        for where, entry, detail in zip(places, entries, details, strict=True)
    ]
    known = {(d.module_path, d.name): listed for d, listed in zip(details, check_records(records), strict=True)}
    unused = sorted({key for entry in entries for key in entry} - _USED)
    notes = [f"fields {shown(unused)} of {file} are not used in planning"] if unused else []
    return model_tables(details, pooling_factors=pooling_factors, known=known, defaults=defaults, notes=notes)


def _table(where: str, entry: Mapping[str, Any]) -> ModelTable:
    listed = check_records([(where, {"dim": 4, **{key: entry.get(key) for key in ("name", "rows")}})])[0]
    features = entry.get("feature_names") or [listed.name]
    if not isinstance(features, list) or not all(isinstance(feature, str) for feature in features):
        raise ValueError(f"{where}: feature_names is {brief(features)}, not a list of names; correct that value")
    precision: Precision = _choice(where, entry, "data_type", "fp32", get_args(Precision))
    pooling: Pooling = _choice(where, entry, "pooling", "sum", get_args(Pooling))
    optimizer: Optimizer | None = None
    if entry.get("optimizer") is not None:
        optimizer = _choice(where, entry, "optimizer", "", get_args(Optimizer))
    return ModelTable(
        name=listed.name,
        rows=listed.rows,
        dim=_dim(where, entry),
        features=tuple(features),
        module_path=_module_path(where, entry),
        precision=precision,
        pooling=pooling,
        is_weighted=bool(entry.get("is_weighted")),
        optimizer=optimizer,
    )


def _module_path(where: str, entry: Mapping[str, Any]) -> str:
    path = entry.get("module_path") or ""
    if not isinstance(path, str) or not path.isprintable():
        raise ValueError(f"{where}: module_path is {brief(path)}, not a path such as `sparse.ebc`; correct that value")
    return path


def _dim(where: str, entry: Mapping[str, Any]) -> int:
    """The table's columns, which need not be a multiple of 4."""
    dim = entry.get("dim")
    if not isinstance(dim, int) or isinstance(dim, bool) or not 1 <= dim <= MOST_COLUMNS:
        raise ValueError(f"{where}: embedding_dim is {brief(dim)}, not a number of columns; give 1 to {MOST_COLUMNS:,}")
    return dim


def _choice(where: str, entry: Mapping[str, Any], name: str, default: str, choices: tuple[str, ...]) -> Any:
    """A value as TorchRec prints it: `FP16` or `DataType.FP16`."""
    value = str(entry.get(name) or default).rpartition(".")[2].lower()
    if value not in choices:
        raise ValueError(
            f"{where}: {name} is {brief(entry[name])}, for which no costs are known; use {', '.join(choices)}"
        )
    return value
