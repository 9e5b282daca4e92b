"""A TorchRec model, from a person's own functions or in memory, as a source of tables and lookups."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dreamshard.files.digests import digest, json_digest
from dreamshard.torchrec.batches import RecordedModel, record
from dreamshard.torchrec.discovery import tables_of
from dreamshard.workloads import (
    ListedTable,
    Lookups,
    Workload,
    WorkloadConfig,
    WorkloadTable,
    call,
    chosen_tables,
    guarded,
    zipf_fingerprint,
    zipf_table,
)
from dreamshard.workloads.model_tables import ModelTables

_END = object()


@dataclass(frozen=True)
class ModelSource:
    """A model that was opened as a source.

    Attributes:
        token: identity of its tables and lookups.
        notes: what of the model was not used, and what was assumed.
    """

    workload: Workload
    token: str
    notes: tuple[str, ...]


def open_model(config: WorkloadConfig) -> ModelSource:
    """The model that `config.source` makes, with lookups from `config.batches`, or else Zipf lookups.

    Raises:
        ValueError: a function is missing or raises an error, or what it returns has no tables or lookups.
    """
    model = tables_of(call(config.source, "there is no model"))
    opened: ModelTables | RecordedModel = model
    if config.batches is not None:
        samples = config.batch_size if config.num_batches is None else None
        batches = _read(call(config.batches, "there are no batches"), config.batches)
        opened = record(model, batches, num_batches=config.num_batches, num_samples=samples)
    workload = workload_of(opened, config)
    token = json_digest([workload.fingerprint(t) for t in range(workload.num_tables)])
    found = opened.model if isinstance(opened, RecordedModel) else opened
    return ModelSource(workload, token, (*found.notes, *_left_out(found)))


def _left_out(model: ModelTables) -> Iterator[str]:
    """What a data set has no room for."""
    kinds = {d.precision for d in model.details} | {d.optimizer for d in model.details if d.optimizer}
    if kinds - {"fp32", "sgd"}:
        yield (
            f"a data set keeps no types of weights and no optimizers ({', '.join(sorted(kinds))}): training takes the "
            "recipe's, and placing the model takes the model's"
        )


def workload_of(model: ModelTables | RecordedModel, config: WorkloadConfig | None = None) -> Workload:
    """The tables of a model with the lookups that were recorded, or else Zipf lookups.

    Args:
        config: which tables to take, and the samples and seed of Zipf lookups; by default all tables with their own dims.

    Raises:
        ValueError: the model has fewer tables than the config asks for.
    """
    config = config or WorkloadConfig(source="a model", dim=None)
    recorded = model.lookups if isinstance(model, RecordedModel) else {}
    tables = model.model.tables if isinstance(model, RecordedModel) else model.tables
    sizes = zip(tables.names, tables.rows.tolist(), tables.dim.tolist(), tables.pooling_factor.tolist(), strict=True)
    chosen = chosen_tables(config, [ListedTable(*each) for each in sizes])

    def table(position: int) -> WorkloadTable:
        entry = chosen[position]
        if entry.name not in recorded:
            return zipf_table(entry, config.batch_size, config.seed)
        return WorkloadTable(entry.name, entry.rows, entry.dim, recorded[entry.name])

    def fingerprint(position: int) -> str:
        entry = chosen[position]
        if entry.name not in recorded:
            return zipf_fingerprint(entry, config.batch_size, config.seed)
        return json_digest(["batches", entry.name, entry.rows, entry.dim, _content(recorded[entry.name])])

    origin = "lookups of sample batches" if recorded else f"Zipf lookups, {config.batch_size} samples"
    return Workload(
        f"{len(chosen)} of the {len(tables)} tables of {config.source}, {origin}",
        tuple(entry.name for entry in chosen),
        table,
        fingerprint,
    )


def _content(lookups: Lookups) -> str:
    return digest(lookups.indices.numpy().tobytes() + lookups.offsets.numpy().tobytes())


def _read(batches: object, function: str) -> Iterator[Any]:
    """The batches, with errors of the code that makes them in one sentence."""
    if not isinstance(batches, Iterable):
        raise ValueError(
            f"{function} returns an object of type {type(batches).__name__}, which has no batches; return a list, "
            "a DataLoader or a generator"
        )
    consequence = "its lookups are not known"
    iterator = guarded(lambda: iter(batches), f"{function} raises", consequence)
    while (batch := guarded(lambda: next(iterator, _END), f"{function} raises", consequence)) is not _END:
        yield batch
