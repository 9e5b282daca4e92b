"""The tables of a list or a model: read and checked, completed to `Tables` to plan with, and a trainer's knowledge of each.

Lists are in CSV, Parquet or JSON; `dreamshard.torchrec` makes the same of TorchRec's modules.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch

from dreamshard.files import InputError, brief, did_you_mean, reading, shown
from dreamshard.tables import (
    BYTES_PER_ELEMENT_STATE,
    BYTES_PER_ROW_STATE,
    DEFAULT_BATCH,
    NUM_BINS,
    ModelTable,
    Optimizer,
    Precision,
    Tables,
    padded_dim,
)
from dreamshard.tasks import PlacementTask
from dreamshard.workloads.lookups import STATISTICS, Lookups, as_tables
from dreamshard.workloads.workload import expected_counts

_BINS = tuple(f"bin_{i}" for i in range(NUM_BINS))
_OTHER_NAMES = {
    "num_embeddings": "rows",
    "embedding_dim": "dim",
    "feature_names": "features",
    "data_type": "precision",
    "collection": "module_path",
    "output": "pooling",
    "row": "rows",
    "index": "name",
}
"""TorchRec's names for columns, and the names in the `table_configs.json` of the papers' authors."""
_TEXTS = dict.fromkeys(("name", "index", "features", "feature_names"), pa.string())  # of CSV, even if they are numbers
_SAME_POOLING = 0.01  # relative: the pooling factor of an ingested table is counted in generated lookups


def list_tables(path: str | Path) -> list[ModelTable]:
    """Read a list of tables, with nothing filled in.

    Args:
        path: `.csv` or `.parquet` with columns `name, rows, dim, pooling_factor` and optionally `bin_0..bin_16, lookups,
            unique_rows, module_path, is_weighted, optimizer`, and TorchRec's `feature_names` (`a+b` in CSV), `data_type`,
            `pooling`; or `.json`: a list of objects with these fields. TorchRec's names of columns are read too.

    Raises:
        ValueError: the file is missing, of an unknown kind, or has a wrong line, which the message names.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"there is no local file {path}; check the path")
    if file.suffix not in (".csv", ".parquet", ".json"):
        raise ValueError(f"{file} is not a list of tables; give the path of a .csv, .parquet or .json file")
    with reading(file, "is not a readable list of tables", "check its format"):
        if file.suffix == ".json":
            records = json.loads(file.read_bytes())
            records = records.get("tables") if isinstance(records, dict) else records
        elif file.suffix == ".csv":
            options = pa.csv.ConvertOptions(column_types=_TEXTS, null_values=[""], strings_can_be_null=True)
            records = pa.csv.read_csv(file, convert_options=options).to_pylist()
        else:
            records = pq.ParquetFile(file).read(use_threads=False).to_pylist()
        if not isinstance(records, list) or not records or not all(isinstance(record, dict) for record in records):
            raise InputError(
                f"{file} lists no tables; give a line or an object per table, with name, rows, dim and pooling_factor "
                "(docs/own-tables.md has the formats)"
            )
    first, of = (2, "line") if file.suffix == ".csv" else (1, "table")
    return check_records({f"{file}, {of} {first + i}": record for i, record in enumerate(records)})


def check_records(records: Mapping[str, Mapping[str, Any]]) -> list[ModelTable]:
    """Check records by their positions (`tables.csv, line 3`); a ValueError names the one that is wrong or repeated."""
    tables: dict[str, ModelTable] = {}
    for where, record in records.items():
        given = {_OTHER_NAMES.get(key, key): value for key, value in record.items() if value not in (None, "")}
        if missing := [column for column in ("name", "rows", "dim") if column not in given]:
            raise InputError(f"{where} has no {', '.join(missing)} (it has {brief(list(record))}); add what is missing")
        if given.keys() & set(_BINS):
            given["bins"] = [given.get(column) for column in _BINS]
        given.setdefault("features", (str(given["name"]),))
        with reading(where, "is wrong", "correct it"):
            table = ModelTable(**given)
        if table.path in tables:
            raise InputError(f"{where}: table {table.name!r} is listed before; rename one of them")
        tables[table.path] = table
    return list(tables.values())


def _with_ingested(listed: Sequence[ModelTable], ingested: Tables | None) -> list[ModelTable]:
    """The tables, with missing statistics from the ingested table of equal name, size and pooling factor."""
    if ingested is None:
        return list(listed)
    columns = {name: values.tolist() for name, values in ingested.columns(torch.arange(len(ingested))).items()}
    position = {name: t for t, name in enumerate(ingested.names)}

    def complete(table: ModelTable) -> ModelTable:
        known = {column: values[position[table.name]] for column, values in columns.items()}
        usual = known["pooling_factor"] if table.pooling_factor is None else table.pooling_factor
        same_size = (table.rows, padded_dim(table.dim)) == (known["rows"], known["dim"])
        if not same_size or not math.isclose(usual, known["pooling_factor"], rel_tol=_SAME_POOLING):
            return table
        filled = {column: known[column] for column in lacking([table])}
        return replace(table, **filled, block_share=table.block_share or known.get("block_share"))

    return [complete(table) if table.name in position else table for table in listed]


def lacking(listed: Sequence[ModelTable]) -> tuple[str, ...]:
    """Columns of statistics that some of the tables lack."""
    return tuple(name for name in STATISTICS if any(getattr(table, name) is None for table in listed))


def _filled(table: ModelTable, batch: int, defaults: Tables | None) -> ModelTable:
    """The table with all statistics, for a batch of so many samples.

    A missing pooling factor is one lookup per feature, or the counted lookups per sample. Other statistics are filled in by
    the mean reuse of `defaults`, or a Zipf law's expectation.
    """
    pooling, lookups = table.pooling_factor, table.lookups
    if pooling is None:
        pooling = float(max(1, len(table.features))) if lookups is None else lookups / batch
    lookups = round(pooling * batch) if lookups is None else lookups
    unique, bins = table.unique_rows, table.bins
    if unique is None or bins is None:
        if defaults is None or not lookups:
            counts = expected_counts(table.rows, lookups)  # 0 for a table that is not looked up
            expected = sum(counts)
        else:
            counts = tuple(defaults.bins.double().sum(dim=0).tolist())
            expected = lookups * float(defaults.unique_rows.sum() / defaults.lookups.sum().clamp(min=1))
        shares = tuple(count / max(sum(counts), 1e-12) for count in counts)
        unique, bins = max(1, round(expected)) if unique is None else unique, bins or shares
    unique = min(unique, table.rows, lookups)
    return replace(table, pooling_factor=pooling, lookups=lookups, unique_rows=unique, bins=bins)


@dataclass(frozen=True)
class ModelTables:
    """The tables of a model; index `t` is the same table in `listed`, `details` and `tables`.

    Attributes:
        listed: `T` tables with all statistics, called as in the model, or by their paths if names repeat.
        details: as they are in the model.
        model_notes: unused parts of the model, for people.
        lookup_notes: origin of the lookups, and assumptions.
        filled_in: columns that the model or list itself does not say for all tables.
        lookups: by name in `tables`, if they were recorded in batches.
    """

    listed: tuple[ModelTable, ...]
    details: tuple[ModelTable, ...]
    model_notes: tuple[str, ...] = ()
    lookup_notes: tuple[str, ...] = ()
    filled_in: tuple[str, ...] = ()
    lookups: Mapping[str, Lookups] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.details)

    @cached_property
    def tables(self) -> Tables:
        """To plan with; dims are rounded up."""
        return as_tables(self.listed)

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
        sizes = self.tables, num_devices, memory_bytes
        return PlacementTask(*sizes, usual, optimizer or self.optimizer, name, precision_of=others, **options)


def model_tables(
    details: Sequence[ModelTable],
    *,
    pooling_factors: Mapping[str, float] | None = None,
    defaults: Tables | None = None,
    notes: Sequence[str] = (),
) -> ModelTables:
    """The tables of a model.

    Args:
        pooling_factors: mean lookups per sample by name of a table or feature, instead of the tables' own.
        defaults: dataset whose lookups fill in missing statistics: those of the same table, or its mean reuse; None for a
            Zipf law's expectation.
        notes: parts not used so far.

    Raises:
        ValueError: there are no tables, two of one module have the same name, or a pooling factor has an unknown name.
    """
    if not details:
        raise ValueError("the model has no embedding tables, so there is nothing to place; give one with a collection")
    given = pooling_factors or {}
    known = {key for detail in details for key in (detail.name, detail.path, *detail.features)}
    if unknown := sorted(given.keys() - known):
        raise ValueError(
            f"a pooling factor is given for {unknown[0]!r}, no table or feature{did_you_mean(unknown[0], known)}; correct it"
        )
    names = Counter(detail.name for detail in details)
    listed = [
        replace(
            detail,
            name=detail.path if names[detail.name] > 1 else detail.name,
            pooling_factor=_pooling_factor(detail, given),
        )
        for detail in details
    ]
    complete = _with_ingested(listed, defaults)
    assumed = [table.name for table in complete if table.pooling_factor is None and table.lookups is None]
    guess = f"how often {shown(assumed)} are looked up is not known: one lookup per feature and sample is assumed"
    batch = DEFAULT_BATCH if defaults is None else defaults.batch_size
    tables = ModelTables(
        tuple(_filled(table, batch, defaults) for table in complete),
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
    of = model.by_name.items()
    concerned = {
        "several modules have tables called {}; they are planned as module.table": sorted(
            {d.name for n, d in of if d.name != n}
        ),
        "the dims of {} are not multiples of 4 and are planned as the next multiple; fbgemm's fused operators refuse them: "
        "widen the tables in the model, or keep them data-parallel": [n for n, d in of if d.dim != padded_dim(d.dim)],
        "costs of {} leave out weights of lookups and the gradient of the weights": [n for n, d in of if d.is_weighted],
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
