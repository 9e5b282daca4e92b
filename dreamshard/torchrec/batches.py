"""Lookups of a model's tables from sample batches of `KeyedJaggedTensor`s, and the model as a source of tables and lookups.

A table's features are looked up together: each sample's lookups are those of the first feature, then of the next. Weights
of lookups are left out, since they do not change which rows are read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dreamshard.files import digest, shown
from dreamshard.model_table import ModelTable
from dreamshard.tables import concatenate, padded_dim
from dreamshard.torchrec.models import tables_of
from dreamshard.workloads import (
    Lookups,
    ModelTables,
    Workload,
    WorkloadConfig,
    WorkloadTable,
    call,
    check_indices,
    index_dtype,
    listed_workload,
    statistics,
)


def record(model: object, batches: Iterable[Any], *, num_samples: int | None = None) -> ModelTables:
    """The model with the lookups of its tables counted in batches, which together count as one.

    Args:
        model: its tables, or a source of them as for `tables_of`.
        batches: of `KeyedJaggedTensor`, or of anything that holds some: with a `sparse_features`, a tuple, a dict, an object.
        num_samples: to count from the start; reading stops once there are enough. None for all.

    Raises:
        ValueError: there are no samples, a batch lacks a feature that a table looks up, or an id is no row of its table.

    >>> batch = KeyedJaggedTensor(["user", "item"], torch.tensor([7, 7, 3]), lengths=torch.tensor([1, 1, 0, 1]))
    >>> ds.record(model, [batch]).tables.pooling_factor.tolist()
    [1.0, 0.5]
    """
    model = model if isinstance(model, ModelTables) else tables_of(model)
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in model.tables.names}
    looked_up = {feature for detail in model.details for feature in detail.features}
    samples = count = 0
    for count, batch in enumerate(batches, start=1):
        features = _features(batch, f"batch {count}")
        sizes = {len(features[feature].lengths()) for feature in looked_up & features.keys()}
        if len(sizes) > 1:
            raise ValueError(
                f"batch {count} has different numbers of samples ({sorted(sizes)}); yield every feature for all samples"
            )
        for name, table in model.by_name.items():
            parts[name].append(_lookups(table, features, f"batch {count}"))
        samples += max(sizes)
        if num_samples and samples >= num_samples:
            break
    if not samples:
        raise ValueError(f"the batches hold no samples ({count} batches were read); yield at least one")
    kept = min(samples, num_samples or samples)
    lookups = {}
    for name, collected in parts.items():
        indices, lengths = (torch.cat(parts) for parts in zip(*collected, strict=True))
        lookups[name] = Lookups(indices, nn.functional.pad(lengths.cumsum(0), (1, 0))).first(kept)
    counted = [
        statistics(WorkloadTable(name, table.rows, padded_dim(table.dim), lookups[name]))
        for name, table in model.by_name.items()
    ]
    tables = replace(concatenate(counted), poolings=model.tables.poolings)
    note = f"lookups were counted in {kept} samples of {count} batches, as one batch"
    return replace(model, tables=tables, lookup_notes=(note,), lookups=lookups)


def open_model(config: WorkloadConfig) -> Workload:
    """The model that `config.source` makes, with lookups from `config.batches`, or else Zipf lookups.

    Raises:
        ValueError: a function is missing or raises an error, its result has no tables or lookups, or the model has fewer
            tables than the config asks for.
    """
    model = tables_of(call(config.source, "there is no model"))
    if config.batches is not None:
        model = record(model, call(config.batches, "there are no batches"), num_samples=config.batch_size)
    recorded, tables, notes = model.lookups, model.tables, model.notes
    if any((detail.precision, detail.optimizer or "sgd") != ("fp32", "sgd") for detail in model.details):
        notes += ("a data set keeps no types of weights and no optimizers: training takes the recipe's",)
    sizes = zip(tables.names, model.details, tables.pooling_factor.tolist(), strict=True)
    tokens = {
        name: digest(lookups.indices.numpy().tobytes() + lookups.offsets.numpy().tobytes())
        for name, lookups in recorded.items()
    }
    samples = max((lookups.batch_size for lookups in recorded.values()), default=0)
    listed = [replace(table, name=name, pooling_factor=pooling) for name, table, pooling in sizes]
    return listed_workload(config, listed, lambda table, _: recorded[table.name], tokens, samples, notes)


def _lookups(table: ModelTable, features: Mapping[str, Any], where: str) -> tuple[Tensor, Tensor]:
    """`[N]` rows that a table's features look up in one batch, sample by sample, and `[B]` lookups of each sample."""
    if missing := [feature for feature in table.features if feature not in features]:
        raise ValueError(
            f"{where} has no feature {shown(missing)}, which table {table.name!r} looks up; the batch has "
            f"{shown(list(features)) or 'none'}"
        )
    parts = [features[feature] for feature in table.features]
    lengths = [part.lengths().detach().cpu().long() for part in parts]
    sample = torch.cat([torch.repeat_interleave(counts) for counts in lengths])  # [N]
    indices = torch.cat([part.values().detach().cpu().long() for part in parts])[sample.argsort(stable=True)]
    try:
        check_indices(indices, table.rows, f"{where}, {shown(table.features)} of table {table.name!r},")
    except ValueError as error:
        raise ValueError(f"{error}, or yield remapped ids") from error
    return indices.to(index_dtype(table.rows)), torch.stack(lengths).sum(dim=0)


def _features(batch: Any, where: str) -> dict[str, Any]:
    """The jagged tensor of each feature of the KeyedJaggedTensors that a batch is or holds."""
    batch = getattr(batch, "sparse_features", batch)
    fields = batch if isinstance(batch, Mapping) else getattr(batch, "__dict__", {})
    parts = batch if isinstance(batch, list | tuple) else [batch, *fields.values()]
    features: dict[str, Any] = {}
    for keyed in parts:
        if not isinstance(keyed, KeyedJaggedTensor):
            continue
        repeated = sorted(features.keys() & set(keyed.keys()))
        if repeated or keyed.variable_stride_per_key():
            problem = f"{shown(repeated)} in two KeyedJaggedTensors" if repeated else "samples taken out"
            raise ValueError(f"{where} has {problem}; yield every feature once, for all samples")
        features |= keyed.to_dict()
    if not features:
        raise ValueError(
            f"{where} is a {type(batch).__name__} without a KeyedJaggedTensor, so it says nothing of lookups; yield "
            "KeyedJaggedTensors, or batches with a `sparse_features`"
        )
    return features
