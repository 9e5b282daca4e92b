"""The embedding tables of a model: `Tables` to plan with, and what a trainer knows of each table besides.

`dreamshard.torchrec` makes them of TorchRec's modules. A list of tables is a model too: it may have the fields of
`EmbeddingBagConfig`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from dreamshard.constraints import UNCONSTRAINED, Constraints
from dreamshard.files.text import shown
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
from dreamshard.workloads.lookups import Lookups
from dreamshard.workloads.table_list import (
    ModelTable,
    fill_missing_columns,
    lacking,
    list_tables,
    with_ingested,
)


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
        lookups: by name in `tables`, if they were recorded in batches.
    """

    tables: Tables
    details: tuple[ModelTable, ...]
    model_notes: tuple[str, ...] = ()
    lookup_notes: tuple[str, ...] = ()
    filled_in: tuple[str, ...] = ()
    lookups: Mapping[str, Lookups] = field(default_factory=dict)

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
        path: a list as for `list_tables`.
        pooling_factors: as for `model_tables`, instead of the file's own.
        defaults: as for `model_tables`.

    Raises:
        ValueError: the file is missing or no list, or a line is wrong, which the message names.
    """
    return model_tables(list_tables(path), pooling_factors=pooling_factors, defaults=defaults)


def model_tables(
    details: Sequence[ModelTable],
    *,
    pooling_factors: Mapping[str, float] | None = None,
    defaults: Tables | None = None,
    notes: Sequence[str] = (),
) -> ModelTables:
    """The tables of a model.

    Args:
        details: with lookups as far as they are known.
        pooling_factors: mean lookups per sample by name of a table, or of a feature in all tables that it looks up, before
            those of the tables; by default 1 per feature.
        defaults: data set whose lookups fill in the others, as for `fill_missing_columns`.
        notes: what was not used so far.

    Raises:
        ValueError: there are no tables, two tables of one module have the same name, or a pooling factor has an unknown
            or ambiguous name.
    """
    if not details:
        raise ValueError("the model has no embedding tables, so there is nothing to place; give one with a collection")
    names, given = _unique_names(details), pooling_factors or {}
    _check_names(names, details, given)
    listed, complete, assumed = [], [], []
    for name, detail in zip(names, details, strict=True):
        factor = _given_factor(name, detail, given)
        factor = detail.pooling_factor if factor is None else factor
        listed.append(replace(detail, name=name, dim=padded_dim(detail.dim), pooling_factor=factor))
    for table in with_ingested(listed, defaults):
        is_known = table.pooling_factor is not None or table.lookups is not None
        complete.append(table if is_known else replace(table, pooling_factor=float(len(table.features))))
        is_partly_given = 0 < len(set(table.features) & set(given)) < len(set(table.features))
        assumed += [table.name] if is_partly_given or not is_known else []
    guess = f"how often {shown(assumed)} are looked up is not known: one lookup per feature and sample is assumed"
    tables = fill_missing_columns(complete, defaults)
    found = (*notes, *_notes(names, details))
    return ModelTables(tables, tuple(details), found, (guess,) if assumed else (), lacking(listed))


def _notes(names: Sequence[str], details: Sequence[ModelTable]) -> list[str]:
    """What planning leaves out of a model."""
    own = [detail.name for detail in details]
    of = list(zip(names, details, strict=True))
    concerned = {
        "several modules have tables called {}; they are planned as module.table": sorted(
            {name for name in own if own.count(name) > 1}
        ),
        "the dims of {} are not multiples of 4 and are planned as the next one; fbgemm's fused operators refuse such dims: "
        "widen the tables in the model, or keep them data-parallel": [n for n, d in of if d.dim != padded_dim(d.dim)],
        "the vectors of {} are not pooled, but costs are predicted as if they were, which leaves out most of what is sent "
        "for long sequences": [n for n, d in of if d.pooling == "none"],
        "{} have several features, for each of which TorchRec sends a vector per sample, but costs are predicted as if one "
        "were sent for all of a table's features": [n for n, d in of if len(d.features) > 1],
        "the weights of lookups of {} are not counted in what is sent": [n for n, d in of if d.is_weighted],
    }
    found = [note.format(shown(tables)) for note, tables in concerned.items() if tables]
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


def _used_optimizers(details: Sequence[ModelTable]) -> dict[Optimizer, list[str]]:
    """The tables of each optimizer; SGD for those without one."""
    used: dict[Optimizer, list[str]] = {}
    for detail in details:
        used.setdefault(detail.optimizer or "sgd", []).append(detail.name)
    return used


def _state_bytes(optimizer: Optimizer) -> tuple[int, int]:
    return BYTES_PER_ELEMENT_STATE[optimizer], BYTES_PER_ROW_STATE[optimizer]


def _unique_names(details: Sequence[ModelTable]) -> list[str]:
    """A name for each table: its own, with its module's path in front if several modules have it."""
    paths, own = [detail.path for detail in details], [detail.name for detail in details]
    if repeated := sorted({detail.name for detail in details if paths.count(detail.path) > 1}):
        raise ValueError(
            f"tables {shown(repeated)} occur more than once in the same module, and TorchRec names tables within a module; "
            "rename them"
        )
    if like_shards := [name for name in own if parent_name(name) != name]:
        raise ValueError(
            f"tables {shown(like_shards)} are named like columns of another table (name[first:last]), so a plan could not "
            "tell them from its shards; rename them"
        )
    return [path if own.count(name) > 1 else name for path, name in zip(paths, own, strict=True)]
