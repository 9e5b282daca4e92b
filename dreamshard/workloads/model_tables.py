"""The embedding tables of a model: `Tables` to plan with, and a trainer's further knowledge of each table.

`dreamshard.torchrec` makes them of TorchRec's modules. A list of tables is a model too: it may have the fields of
`EmbeddingBagConfig`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dreamshard.files import did_you_mean, shown
from dreamshard.model_table import ModelTable
from dreamshard.tables import (
    BYTES_PER_ELEMENT_STATE,
    BYTES_PER_ROW_STATE,
    Optimizer,
    Precision,
    Tables,
    padded_dim,
)
from dreamshard.tasks import PlacementTask
from dreamshard.workloads.lookups import Lookups
from dreamshard.workloads.table_list import fill_missing_columns, lacking, with_ingested


@dataclass(frozen=True)
class ModelTables:
    """The tables of a model; index `t` is the same table in `tables` and `details`.

    Attributes:
        tables: to plan with. Names are those of the model, with the module's path in front if several modules have a table
            of that name. Dims are rounded up to multiples of 4.
        details: `T` tables as they are in the model.
        model_notes: unused parts of the model, for people.
        lookup_notes: origin of the lookups, and assumptions.
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
        """Unused parts and assumptions, in sentences."""
        return (*self.model_notes, *self.lookup_notes)

    @property
    def by_name(self) -> dict[str, ModelTable]:
        """Each table as it is in the model, by its name in `tables`."""
        return dict(zip(self.tables.names, self.details, strict=True))

    @property
    def precision(self) -> Precision:
        """The type of weights of most tables."""
        return Counter(detail.precision for detail in self.details).most_common(1)[0][0]

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that all tables are planned with: the one with the most state, SGD as TorchRec if none is named."""
        used = {detail.optimizer or "sgd" for detail in self.details}
        return max(sorted(used), key=lambda name: (BYTES_PER_ELEMENT_STATE[name], BYTES_PER_ROW_STATE[name]))

    def task(
        self,
        num_devices: int,
        memory_bytes: int,
        *,
        precision: Precision | None = None,
        optimizer: Optimizer | None = None,
        name: str = "model",
        **options: Any,
    ) -> PlacementTask:
        """The task of placing all tables.

        Args:
            num_devices: this, `memory_bytes` and `options` are as the fields of `PlacementTask`.
            precision: of all weights; None for each table's own.
            optimizer: None for `ModelTables.optimizer`.

        Raises:
            ValueError: no placement is legal.
        """
        usual: Precision = precision or self.precision
        others = {} if precision else {name: d.precision for name, d in self.by_name.items() if d.precision != usual}
        options |= {"precision": usual, "optimizer": optimizer or self.optimizer, "precision_of": others}
        return PlacementTask(self.tables, num_devices, memory_bytes, name=name, **options)


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
        notes: parts not used so far.

    Raises:
        ValueError: there are no tables, two tables of one module have the same name, or a pooling factor has an unknown
            name.
    """
    if not details:
        raise ValueError("the model has no embedding tables, so there is nothing to place; give one with a collection")
    given = dict(pooling_factors or {})
    known = {key for detail in details for key in (detail.name, detail.path, *detail.features)}
    if unknown := sorted(given.keys() - known):
        raise ValueError(
            f"a pooling factor is given for {unknown[0]!r}, no table or feature{did_you_mean(unknown[0], known)}; correct it"
        )
    listed = [
        replace(detail, name=name, pooling_factor=_pooling_factor(detail, given))
        for name, detail in zip(_unique_names(details), details, strict=True)
    ]
    complete = with_ingested(listed, defaults)
    assumed = [table.name for table in complete if table.pooling_factor is None and table.lookups is None]
    guess = f"how often {shown(assumed)} are looked up is not known: one lookup per feature and sample is assumed"
    tables = ModelTables(
        fill_missing_columns(complete, defaults),
        tuple(details),
        lookup_notes=(guess,) if assumed else (),
        filled_in=lacking(listed),
    )
    return replace(tables, model_notes=(*notes, *_notes(tables)))


def _pooling_factor(detail: ModelTable, given: Mapping[str, float]) -> float | None:
    """Lookups per sample as given for the table or for its features, of which others count 1; else the table's own."""
    for key in (detail.path, detail.name):
        if key in given:
            return given[key]
    is_given = not given.keys().isdisjoint(detail.features)
    return sum(given.get(feature, 1.0) for feature in detail.features) if is_given else detail.pooling_factor


def _notes(model: ModelTables) -> list[str]:
    """Parts of a model that planning leaves out."""
    names, of = Counter(detail.name for detail in model.details), model.by_name.items()
    concerned = {
        "several modules have tables called {}; they are planned as module.table": sorted(
            name for name, count in names.items() if count > 1
        ),
        "the dims of {} are not multiples of 4 and are planned as the next one; fbgemm's fused operators refuse such dims: "
        "widen the tables in the model, or keep them data-parallel": [n for n, d in of if d.dim != padded_dim(d.dim)],
        "the weights of lookups of {} are not counted in what is sent": [n for n, d in of if d.is_weighted],
    }
    notes = [note.format(shown(tables)) for note, tables in concerned.items() if tables]
    used = sorted({detail.optimizer or "sgd" for detail in model.details})
    if len(used) > 1:
        by_optimizer = {optimizer: [n for n, d in of if (d.optimizer or "sgd") == optimizer] for optimizer in used}
        several = "; ".join(f"{optimizer} of {shown(tables)}" for optimizer, tables in by_optimizer.items())
        notes.append(
            f"tables have different optimizers ({several}); all are planned with {model.optimizer}, which has the most state"
        )
    return notes


def _unique_names(details: Sequence[ModelTable]) -> list[str]:
    """A name for each table: its own, with its module's path in front if several modules have it."""
    paths, names = Counter(detail.path for detail in details), Counter(detail.name for detail in details)
    if repeated := sorted(path for path, count in paths.items() if count > 1):
        raise ValueError(
            f"tables {shown(repeated)} occur more than once in the same module, and TorchRec names tables within a module; "
            "rename them"
        )
    return [detail.path if names[detail.name] > 1 else detail.name for detail in details]
