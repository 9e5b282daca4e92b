"""The embedding tables of a model: `Tables` to plan with, and what a trainer knows of each table besides.

`dreamshard.torchrec` makes them of TorchRec's modules; this module needs no TorchRec. A list of tables is a model too: it
may have the fields of `EmbeddingBagConfig`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator, Field

from dreamshard.constraints import UNCONSTRAINED, Constraints
from dreamshard.tables import (
    BYTES_PER_ELEMENT_STATE,
    BYTES_PER_ROW_STATE,
    Optimizer,
    Precision,
    Tables,
    padded_dim,
    parent_name,
)
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import ListedTable, fill_missing_columns
from dreamshard.workloads.table_list import (
    LISTED,
    Name,
    check_records,
    lacking,
    list_records,
    parsed,
    unused_fields,
    with_ingested,
)

Pooling = Literal["sum", "mean", "none"]
"""How a sample's vectors become one; `none` keeps each, as for sequences."""

_SHOWN = 5  # names in a message
_OTHER_NAMES = {"feature_names": "features", "data_type": "precision"}
_FIELDS = {"feature_names", "data_type", "pooling", "module_path", "is_weighted", "optimizer"}

_AS_PRINTED = BeforeValidator(lambda value: value.rpartition(".")[2].lower() if isinstance(value, str) else value)
"""TorchRec prints values as `FP16` or `DataType.FP16`."""


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=LISTED)
class ModelTable:
    """One table of a model.

    Attributes:
        name: in the model, unique within its module.
        module_path: of its collection within the model, as in `named_modules`; empty for the model itself.
        dim: columns of the table, which need not be a multiple of 4.
        precision: type of the weights.
        features: names of the features that look it up.
        is_weighted: whether its lookups have weights.
        optimizer: fused into the backward pass; None if the model does not say.
        collection: class of the module that holds it, with its package; empty where that is not known.
    """

    name: Name
    rows: Annotated[int, Field(ge=1)]
    dim: Annotated[int, Field(ge=1)]
    features: Annotated[
        tuple[str, ...], BeforeValidator(lambda value: value.split("+") if isinstance(value, str) else value)
    ]
    module_path: str = ""
    precision: Annotated[Precision, _AS_PRINTED] = "fp32"
    pooling: Annotated[Pooling, _AS_PRINTED] = "sum"
    is_weighted: bool = False
    optimizer: Annotated[Optimizer, _AS_PRINTED] | None = None
    collection: str = ""

    @property
    def path(self) -> str:
        """Module path and name."""
        return f"{self.module_path}.{self.name}" if self.module_path else self.name

    @property
    def planned_dim(self) -> int:
        """Columns rounded up to the multiple of 4 that is planned with."""
        return padded_dim(self.dim)


@dataclass(frozen=True)
class ModelTables:
    """The tables of a model; index `t` is the same table in `tables` and `details`.

    Attributes:
        tables: to plan with. Names are those of the model, with the module's path in front where several modules have a
            table of that name. Dims are rounded up to multiples of 4.
        details: `T` tables as they are in the model.
        model_notes: what of the model was not used, for people.
        lookup_notes: where lookups are from, and what was assumed of them.
        filled_in: columns that the model or list itself does not say for all tables.
    """

    tables: Tables
    details: tuple[ModelTable, ...]
    model_notes: tuple[str, ...] = ()
    lookup_notes: tuple[str, ...] = ()
    filled_in: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.details)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not used and what was assumed, in sentences."""
        return (*self.model_notes, *self.lookup_notes)

    @property
    def by_name(self) -> dict[str, ModelTable]:
        """Each table as it is in the model, by its name in `tables`."""
        return dict(zip(self.tables.names, self.details, strict=True))

    @property
    def precision(self) -> Precision:
        """The type of weights of most tables."""
        own: list[Precision] = [detail.precision for detail in self.details]
        return max(own, key=own.count)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that all tables are planned with: theirs, or where they differ the one with the most state.

        Where the model names none it is SGD, as TorchRec's.
        """
        return max(sorted(_used_optimizers(self.details)), key=_state_bytes)

    def task(
        self,
        num_devices: int,
        memory_bytes: int,
        *,
        precision: Precision | None = None,
        optimizer: Optimizer | None = None,
        name: str = "model",
        devices_per_host: int | None = None,
        batch_size: int | None = None,
        constraints: Constraints = UNCONSTRAINED,
    ) -> PlacementTask:
        """The task of placing all tables; arguments as the fields of `PlacementTask`.

        Args:
            precision: of all weights; None for each table's own.
            optimizer: None for `ModelTables.optimizer`.

        Raises:
            ValueError: no placement is legal.
        """
        usual: Precision = precision or self.precision
        others = {} if precision else {name: d.precision for name, d in self.by_name.items() if d.precision != usual}
        return PlacementTask(
            self.tables,
            num_devices,
            memory_bytes,
            precision=usual,
            optimizer=optimizer or self.optimizer,
            name=name,
            devices_per_host=devices_per_host,
            batch_size=batch_size,
            precision_of=others,
            constraints=constraints,
        )


def read_configs(
    path: str | Path, pooling_factors: Mapping[str, float] | None = None, defaults: Tables | None = None
) -> ModelTables:
    """The tables of a list, with what it says of features, types and modules.

    Args:
        path: a list as for `read_tables`, and optionally TorchRec's `feature_names`, `data_type`, `pooling`, and
            `module_path`, `is_weighted`, `optimizer`. In CSV, `a+b` are two features.
        pooling_factors: as for `model_tables`, instead of the file's own.
        defaults: as for `model_tables`.

    Raises:
        ValueError: the file is missing or no list, or a line is wrong, which the message names.
    """
    records = list_records(path)
    details = [_detail(where, record) for where, record in records]
    listed = check_records(
        [
            (where, {**record, "name": f"{detail.module_path}.{detail.name}"})
            for (where, record), detail in zip(records, details, strict=True)
        ]
    )
    known = {(d.module_path, d.name): table for d, table in zip(details, listed, strict=True)}
    unused = sorted(set(unused_fields(records)) - _FIELDS)
    notes = [f"fields {shown(unused)} of {path} are not used in planning"] if unused else []
    return model_tables(details, pooling_factors=pooling_factors, known=known, defaults=defaults, notes=notes)


def _detail(where: str, record: Mapping[str, Any]) -> ModelTable:
    given = {_OTHER_NAMES.get(key, key): value for key, value in record.items()}
    return parsed(ModelTable, where, {**given, "features": given.get("features") or (str(given.get("name", "")),)})


def model_tables(
    details: Sequence[ModelTable],
    *,
    pooling_factors: Mapping[str, float] | None = None,
    known: Mapping[tuple[str, str], ListedTable] | None = None,
    defaults: Tables | None = None,
    notes: Sequence[str] = (),
) -> ModelTables:
    """The tables of a model whose lookups are not known.

    Args:
        pooling_factors: mean lookups per sample by name of a table, or of a feature in all tables that it looks up; by
            default 1 per feature.
        known: what is known of the lookups of single tables, by module path and name; given pooling factors precede it.
        defaults: data set whose lookups fill in the others, as for `fill_missing_columns`.
        notes: what was not used so far.

    Raises:
        ValueError: there are no tables, two tables of one module have the same name, or a pooling factor has an unknown
            or ambiguous name.
    """
    if not details:
        raise ValueError("the model has no embedding tables, so there is nothing to place; give one with a collection")
    names, qualified = _unique_names(details)
    blank = [ListedTable(name, detail.rows, detail.planned_dim) for name, detail in zip(names, details, strict=True)]
    listed = [
        replace((known or {}).get((detail.module_path, detail.name), table), name=table.name)
        for detail, table in zip(details, blank, strict=True)
    ]
    given = pooling_factors or {}
    _check_names(names, details, given)
    factors = [_given_factor(name, detail, given) for name, detail in zip(names, details, strict=True)]
    listed = [
        table if factor is None else replace(table, pooling_factor=factor)
        for table, factor in zip(listed, factors, strict=True)
    ]
    complete, assumed = [], []
    for table, detail in zip(with_ingested(listed, defaults), details, strict=True):
        is_known = table.pooling_factor is not None or table.lookups is not None
        complete.append(table if is_known else replace(table, pooling_factor=float(len(detail.features))))
        is_partly_given = 0 < len(set(detail.features) & set(given)) < len(set(detail.features))
        assumed += [table.name] if is_partly_given or not is_known else []
    rate = "one lookup per feature and sample is assumed"
    guesses = [f"how often {shown(assumed)} are looked up is not known: {rate}"] if assumed else []
    found = [*notes, *_notes(names, details, qualified)]
    tables = fill_missing_columns(complete, defaults).tables
    return ModelTables(tables, tuple(details), tuple(found), tuple(guesses), lacking(listed))


def _notes(names: Sequence[str], details: Sequence[ModelTable], qualified: Sequence[str]) -> list[str]:
    """What planning leaves out of a model."""
    found = []
    if qualified:
        found.append(f"several modules have tables called {shown(qualified)}; they are planned as module.table")
    padded = [name for name, detail in zip(names, details, strict=True) if detail.dim != detail.planned_dim]
    if padded:
        found.append(
            f"the dims of {shown(padded)} are not multiples of 4 and are planned as the next one; fbgemm's fused operators "
            "refuse such dims, so widen the tables in the model, or keep them data-parallel"
        )
    sequences = [name for name, detail in zip(names, details, strict=True) if detail.pooling == "none"]
    if sequences:
        found.append(
            f"the vectors of {shown(sequences)} are not pooled, but costs are predicted as if they were, which leaves out "
            "most of what is sent for long sequences"
        )
    found += feature_notes(names, details)
    weighted = [name for name, detail in zip(names, details, strict=True) if detail.is_weighted]
    if weighted:
        found.append(f"the weights of lookups of {shown(weighted)} are not counted in what is sent")
    used = _used_optimizers(details)
    if len(used) > 1:
        several = "; ".join(f"{optimizer} of {shown(tables)}" for optimizer, tables in sorted(used.items()))
        most = max(sorted(used), key=_state_bytes)
        found.append(
            f"tables have different optimizers ({several}); all are planned with {most}, which has the most state"
        )
    return found


def _given_factor(name: str, detail: ModelTable, given: Mapping[str, float]) -> float | None:
    """Lookups per sample by the table's name or by features, of which those without a factor count 1; else None."""
    for key in (name, detail.name):
        if key in given and key not in detail.features:
            return float(given[key])
    if not set(detail.features) & set(given):
        return None
    return sum(float(given.get(feature, 1.0)) for feature in detail.features)


def _check_names(names: Sequence[str], details: Sequence[ModelTable], given: Mapping[str, float]) -> None:
    """Refuse names of pooling factors that are unknown, or of a table and of another table's feature."""
    features = {feature for detail in details for feature in detail.features}
    own = {name: detail for planned, detail in zip(names, details, strict=True) for name in (planned, detail.name)}
    for key in given:
        if key not in features and key not in own:
            close = get_close_matches(key, {*features, *own}, n=3)
            hint = f"did you mean {', '.join(close)}?" if close else f"tables are called {shown(list(own))}"
            raise ValueError(
                f"a pooling factor is given for {key!r}, which is no table or feature of the model; {hint}"
            )
        if key in features and key in own and own[key].features != (key,):
            raise ValueError(
                f"a pooling factor is given for {key!r}, which is a table and another table's feature, so it is unclear "
                "which is meant; rename the table"
            )


def feature_notes(names: Sequence[str], details: Sequence[ModelTable]) -> list[str]:
    """A note on tables that several features look up, if there are any."""
    several = [name for name, detail in zip(names, details, strict=True) if len(detail.features) > 1]
    if not several:
        return []
    return [
        f"{shown(several)} have several features, for each of which TorchRec sends a vector per sample, but costs are "
        "predicted as if one were sent for all of a table's features"
    ]


def shown(names: Sequence[Any]) -> str:
    """The first few names for a message, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(str, names[:_SHOWN])) + more


def _used_optimizers(details: Sequence[ModelTable]) -> dict[Optimizer, list[str]]:
    """The tables of each optimizer; SGD for those without one."""
    used: dict[Optimizer, list[str]] = {}
    for detail in details:
        used.setdefault(detail.optimizer or "sgd", []).append(detail.name)
    return used


def _state_bytes(optimizer: Optimizer) -> tuple[int, int]:
    return BYTES_PER_ELEMENT_STATE[optimizer], BYTES_PER_ROW_STATE[optimizer]


def _unique_names(details: Sequence[ModelTable]) -> tuple[list[str], list[str]]:
    """A name for each table, and those names of the model that occur in several modules."""
    places = [(detail.module_path, detail.name) for detail in details]
    repeated = sorted({name for path, name in places if places.count((path, name)) > 1})
    if repeated:
        raise ValueError(
            f"tables {shown(repeated)} occur more than once in the same module, and TorchRec names tables within a module; "
            "rename them"
        )
    own = [detail.name for detail in details]
    like_shards = [name for name in own if parent_name(name) != name]
    if like_shards:
        raise ValueError(
            f"tables {shown(like_shards)} are named like columns of another table (name[first:last]), so a plan could not "
            "tell them from its shards; rename them"
        )
    shared = {name for name in own if own.count(name) > 1}
    names = [f"{d.module_path}.{d.name}" if d.name in shared and d.module_path else d.name for d in details]
    return names, sorted(shared)
