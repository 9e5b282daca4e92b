"""Tables of a TorchRec model, or of a JSON file of its configs, to be placed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.placing.listed_tables import DATASETS, read_listed

if TYPE_CHECKING:
    from dreamshard.constraints import Constraints
    from dreamshard.model_tables import ModelTables
    from dreamshard.tables import Optimizer, Precision, Tables
    from dreamshard.tasks import PlacementTask
    from storage.store import Store


def read_model(store: "Store", source: Path, note: Callable[[str], None]) -> "ModelTables | None":
    """The model that `model.py:make_model` makes, or whose configs a JSON file holds; None for other lists of tables.

    Lookups are those of the newest data set that has all tables of the model. Notes say what was not used or was assumed.

    Raises:
        ValueError: the function or the file is wrong, or the model has no tables that can be planned.
    """
    from dreamshard.model_configs import read_configs
    from dreamshard.workloads.functions import call, is_function

    if not is_function(str(source)) and source.suffix != ".json":
        return None
    versions = store.lake.dataset_versions()
    defaults = store.lake.read_dataset(versions[-1]) if versions else None
    if is_function(str(source)):
        from flows.runtime.sources import torchrec_bridge

        bridge = torchrec_bridge()
        model: ModelTables = bridge.tables_of(call(str(source), "there is no model"), defaults=defaults)
    else:
        model = read_configs(source, defaults=defaults)
    model = _with_ingested_lookups(store, versions, model) or _with_origin(model, defaults)
    for sentence in model.notes:
        note(sentence)
    return model


def tables_from(store: "Store", source: Path, note: Callable[[str], None]) -> "tuple[Tables, ModelTables | None]":
    """The tables of a list or a model, and the model if it is one."""
    model = read_model(store, source, note)
    return (read_listed(store, source, note), None) if model is None else (model.tables, model)


def task_of(
    tables: "Tables",
    model: "ModelTables | None",
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
        ranks: `cuda` or `cpu` where the plan is for TorchRec; None where it is not, or not yet.
        options: other fields of `PlacementTask`.

    Raises:
        ValueError: no placement is legal.
    """
    from dreamshard.tasks import PlacementTask

    narrowed, notes = _as_torchrec_shards(tables, model, constraints, ranks)
    for sentence in notes:
        note(sentence)
    if model is not None and ranks is not None:
        from dreamshard.torchrec import check_copies

        room = memory_bytes - constraints.reserve_bytes
        check_copies(model, narrowed, optimizer or model.optimizer, room, precision)
    options = {**options, "constraints": narrowed}
    if model is not None:
        return model.task(num_devices, memory_bytes, precision=precision, optimizer=optimizer, **options)
    return PlacementTask(
        tables, num_devices, memory_bytes, precision=precision or "fp32", optimizer=optimizer or "sgd", **options
    )


def _as_torchrec_shards(
    tables: "Tables", model: "ModelTables | None", constraints: "Constraints", ranks: str | None
) -> "tuple[Constraints, list[str]]":
    """The constraints, narrowed to what TorchRec runs, and notes: for its plans, and for models whose modules are known."""
    if ranks is None and (model is None or not any(detail.collection for detail in model.details)):
        return constraints, []
    from dreamshard.model_tables import ModelTable
    from dreamshard.torchrec import with_default_ways

    if model is None:
        sizes = zip(tables.names, tables.rows.tolist(), tables.dim.tolist(), strict=True)
        listed = {name: ModelTable(name=name, rows=rows, dim=dim, features=(name,)) for name, rows, dim in sizes}
    else:
        listed = model.by_name
    return with_default_ways(constraints, listed, device_type=ranks or "cuda", widen=ranks is None)


def setting_of(
    model: "ModelTables | None",
    precision: "Precision | None",
    optimizer: "Optimizer | None",
    note: Callable[[str], None],
) -> "tuple[Precision, Optimizer]":
    """One type of weights and one optimizer for all tables: as given, else as the model has them."""
    if model is None:
        return precision or "fp32", optimizer or "sgd"
    others = [name for name, detail in model.by_name.items() if detail.precision != model.precision]
    if others and precision is None:
        note(f"types of weights differ; {', '.join(others[:5])} count as {model.precision} too, as most tables are")
    return precision or model.precision, optimizer or model.optimizer


def located(
    model: "ModelTables | None", source: Path, module_path: str | None
) -> "tuple[ModelTables | None, str | None]":
    """The model if it is known where its tables are, and the module path that is left to say where a list's are.

    A JSON file need not say in which module its tables are.
    """
    if model is None or source.suffix != ".json":
        return model, module_path
    if module_path is None:
        return (model if any(detail.module_path for detail in model.details) else None), None
    details = tuple(replace(detail, module_path=detail.module_path or module_path) for detail in model.details)
    return replace(model, details=details), None


def _with_ingested_lookups(store: "Store", versions: list[str], model: "ModelTables") -> "ModelTables | None":
    """The model with the lookups of the newest data set that has all of its tables; None if there is none."""
    wanted = model.tables
    for version in reversed(versions[-DATASETS:]):
        tables = store.lake.read_dataset(version)
        if not set(wanted.names) <= set(tables.names):
            continue
        found = tables.named(wanted.names)
        if bool((found.rows == wanted.rows).all()) and bool((found.dim == wanted.dim).all()):
            note = f"lookups are those of data set {version} ({store.lake.dataset_source(version)})"
            return replace(model, tables=found, lookup_notes=(note,))
    return None


def _with_origin(model: "ModelTables", defaults: "Tables | None") -> "ModelTables":
    """The model with a note on where its lookups are from."""
    source = "a Zipf law" if defaults is None else "the mean of the tables ingested last"
    note = f"how often rows are looked up again is filled in by {source}; `dreamshard ingest` with --batches counts it"
    return replace(model, lookup_notes=(*model.lookup_notes, note))
