"""Tables of a list or of a TorchRec model, to be placed."""

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dreamshard.constraints import Constraints
    from dreamshard.tables import Optimizer, Precision, Tables
    from dreamshard.tasks import PlacementTask
    from dreamshard.workloads.model_tables import ModelTables
    from storage.store import Store

DATASETS = 20
"""Newest data sets that are searched for tables."""


def read_model(store: "Store", source: Path, note: Callable[[str], None]) -> "ModelTables":
    """The tables of a file, of a bundled list by its name, or of the model that `model.py:make_model` makes.

    Lookups that the source does not say are as ingested for the same tables, by the newest data set that has all of them, or
    else by the newest one; other tables get its mean reuse. `note` gets sentences on what was assumed or not used.

    Raises:
        ValueError: the function or the file is wrong, or there are no tables that can be planned.
    """
    from dreamshard.workloads import bundled_lists, call, is_function
    from dreamshard.workloads.model_tables import read_configs

    versions = store.lake.dataset_versions()[-DATASETS:]
    version = versions[-1] if versions else None
    newest = store.lake.read_dataset(versions[-1]) if versions else None
    if is_function(str(source)):
        from flows.runtime.sources import torchrec_bridge

        made, tables_of = call(str(source), "there is no model"), torchrec_bridge().tables_of

        def read(defaults: "Tables | None") -> "ModelTables":
            found: ModelTables = tables_of(made, defaults=defaults)
            return found
    else:
        _check_name(source)
        path = bundled_lists().get(str(source), source)

        def read(defaults: "Tables | None") -> "ModelTables":
            return read_configs(path, defaults=defaults)

    model = read(newest)
    for each in reversed(versions if model.filled_in else []):
        tables = store.lake.read_dataset(each)
        if set(_sizes(model.tables)) <= set(_sizes(tables)):
            version, model = each, model if each == version else read(tables)
            break
    for sentence in (*model.notes, *_origin(store, version, model)):
        note(sentence)
    return model


def _check_name(path: Path) -> None:
    """Refuse a name that is neither a bundled list's nor a file's.

    Raises:
        ValueError: the name is; the message lists the bundled ones.
    """
    from dreamshard.workloads import bundled_lists

    if path.suffix or path.is_file() or str(path) in bundled_lists():
        return
    near = get_close_matches(str(path), bundled_lists(), n=1)
    meant = f"did you mean {near[0]!r}? Or " if near else ""
    raise ValueError(
        f"there is no bundled list {str(path)!r}, so there are no tables to place; {meant}give a file that ends in "
        f".csv, .parquet or .json, model.py:make_model, or one of {', '.join(bundled_lists())}"
    )


def _sizes(tables: "Tables") -> list[tuple[str, int, int]]:
    return list(zip(tables.names, tables.rows.tolist(), tables.dim.tolist(), strict=True))


def _origin(store: "Store", version: str | None, model: "ModelTables") -> list[str]:
    """A sentence on where the columns that the source lacks are from, if it lacks any."""
    if not model.filled_in:
        return []
    what = f"{', '.join(model.filled_in)} are not given"
    if version is None:
        return [
            f"{what} and no tables are ingested in this home, so they are filled in by a Zipf law; `dreamshard ingest` "
            "with --batches counts a model's"
        ]
    known = set(_sizes(ingested := store.lake.read_dataset(version)))
    unique = dict(zip(ingested.names, ingested.unique_rows.tolist(), strict=True))
    same = [
        name
        for (name, rows, dim), own in zip(_sizes(model.tables), model.tables.unique_rows.tolist(), strict=True)
        if (name, rows, dim) in known and own == unique[name]
    ]
    data_set = f"data set {version} ({store.lake.dataset_source(version)})"
    if len(same) == len(model):
        return [f"{what}: taken from the same tables in {data_set}"]
    if same:
        return [
            f"{what}: taken from the same tables in {data_set} where it has them ({len(same)} of {len(model)}), else from "
            "its mean reuse"
        ]
    return [f"{what}: filled in by the mean reuse of the tables ingested last, {data_set}"]


def task_of(
    model: "ModelTables",
    num_devices: int,
    memory_bytes: int,
    precision: "Precision | None",
    optimizer: "Optimizer | None",
    *,
    constraints: "Constraints",
    note: Callable[[str], None],
    ranks: str | None = None,
    **options: Any,
) -> "PlacementTask":
    """The task of placing tables, with types of weights and optimizer as given, else as the model has them.

    Tables of a model are sharded only in ways that TorchRec's default sharders run them in.

    Args:
        constraints: of the placement.
        note: gets sentences on what was narrowed.
        ranks: `cuda` or `cpu` if the plan is for TorchRec; None if it is not, or not yet.
        options: other fields of `PlacementTask`.

    Raises:
        ValueError: no placement is legal.
    """
    if ranks is not None or any(detail.collection for detail in model.details):
        from dreamshard.torchrec import narrowed

        constraints, notes = narrowed(constraints, model.by_name, device_type=ranks or "cuda", widen=ranks is None)
        for sentence in notes:
            note(sentence)
    return model.task(
        num_devices, memory_bytes, precision=precision, optimizer=optimizer, constraints=constraints, **options
    )


def setting_of(
    model: "ModelTables",
    precision: "Precision | None",
    optimizer: "Optimizer | None",
    note: Callable[[str], None],
) -> "tuple[Precision, Optimizer]":
    """One type of weights and one optimizer for all tables: as given, else as the model has them."""
    others = [name for name, detail in model.by_name.items() if detail.precision != model.precision]
    if others and precision is None:
        note(f"types of weights differ; {', '.join(others[:5])} count as {model.precision} too, as most tables are")
    return precision or model.precision, optimizer or model.optimizer


def located(model: "ModelTables", source: Path, module_path: str | None) -> "tuple[ModelTables | None, str | None]":
    """The model if it is known where its tables are, and the module path that is left to say where a list's are.

    A list need not say in which module its tables are.
    """
    from dreamshard.workloads import is_function

    if is_function(str(source)):
        return model, module_path
    if module_path is None:
        return (model if any(detail.module_path for detail in model.details) else None), None
    details = tuple(replace(detail, module_path=detail.module_path or module_path) for detail in model.details)
    return replace(model, details=details), None
