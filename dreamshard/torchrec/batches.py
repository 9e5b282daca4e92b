"""Lookups of a model's tables from sample batches of `KeyedJaggedTensor`s.

A table's features are looked up together: each sample's lookups are those of the first feature, then of the next. Weights
of lookups are left out, since they do not change which rows are read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dreamshard.tables import concatenate
from dreamshard.workloads import Lookups, WorkloadTable, check_indices, index_dtype, statistics
from dreamshard.workloads.model_tables import ModelTable, ModelTables, shown


@dataclass(frozen=True)
class RecordedModel:
    """A model with the lookups that were counted in batches.

    Attributes:
        model: its tables have the statistics of the lookups.
        lookups: by name of the table in `model`.
    """

    model: ModelTables
    lookups: Mapping[str, Lookups]


Parts = list[tuple[Int[Tensor, " N"], Int[Tensor, " B"]]]
"""Rows that one table looks up, and how many per sample, batch by batch."""


def record(
    model: ModelTables, batches: Iterable[Any], *, num_batches: int | None = None, num_samples: int | None = None
) -> RecordedModel:
    """Count the lookups of a model's tables in batches, which together count as one.

    Args:
        batches: of `KeyedJaggedTensor`, or of anything that holds some: with a `sparse_features`, a tuple, a dict, an object.
        num_batches: to read from the start; None for all.
        num_samples: to count from the start; reading stops once there are enough.

    Raises:
        ValueError: there are no samples, a batch lacks a feature that a table looks up, or an id is no row of its table.
    """
    recordings: dict[str, Parts] = {name: [] for name in model.tables.names}
    unused: dict[str, None] = {}
    samples = count = 0
    for batch in islice(batches, num_batches):
        count += 1
        features = _features(batch, f"batch {count}")
        samples += _add(recordings, model.by_name, features, f"batch {count}")
        looked_up = {feature for detail in model.details for feature in detail.features}
        unused |= dict.fromkeys(key for key in features if key not in looked_up)
        if num_samples is not None and samples >= num_samples:
            break
    if not samples:
        raise ValueError(
            f"the batches hold no samples ({count} batches were read), so nothing is known of the lookups; yield at least one"
        )
    kept = samples if num_samples is None else min(samples, num_samples)
    lookups = {name: _joined(parts).first(kept) for name, parts in recordings.items()}
    return RecordedModel(_counted(model, lookups, kept, count, list(unused)), lookups)


def _counted(
    model: ModelTables, lookups: Mapping[str, Lookups], samples: int, batches: int, unused: Sequence[str]
) -> ModelTables:
    """The model with statistics of its lookups instead of assumptions."""
    sizes = zip(model.tables.names, model.tables.rows.tolist(), model.tables.dim.tolist(), strict=True)
    tables = concatenate([statistics(WorkloadTable(name, rows, dim, lookups[name])) for name, rows, dim in sizes])
    notes = [f"lookups were counted in {samples} samples of {batches} batches, as one batch"]
    if unused:
        notes.append(f"no table looks up {shown(unused)} of the batches")
    return replace(model, tables=tables, lookup_notes=tuple(notes))


def _add(
    recordings: Mapping[str, Parts], tables: Mapping[str, ModelTable], features: Mapping[str, Any], where: str
) -> int:
    """Add the lookups of one batch to each table's; returns the number of samples."""
    sizes: dict[int, str] = {}
    for name, table in tables.items():
        missing = [feature for feature in table.features if feature not in features]
        if missing:
            raise ValueError(
                f"{where} has no feature {shown(missing)}, which table {name!r} looks up, so its lookups are not known; the "
                f"batch has {shown(list(features)) or 'none'}"
            )
        parts = [_part(features[feature]) for feature in table.features]
        sizes |= {len(lengths): feature for feature, (_, lengths) in zip(table.features, parts, strict=True)}
        if len(sizes) > 1:
            several = ", ".join(f"{size} of {feature}" for size, feature in sizes.items())
            raise ValueError(
                f"{where} has different numbers of samples ({several}), but every table is looked up for all of them; yield "
                "batches without repeated samples taken out"
            )
        indices, lengths = _together(parts)
        remaps = "; if the model remaps ids, yield them remapped"
        try:
            check_indices(indices, table.rows, f"{where}, {shown(table.features)} of table {name!r},")
        except ValueError as error:
            raise ValueError(f"{error}{remaps}") from error
        recordings[name].append((indices.to(index_dtype(table.rows)), lengths))
    return next(iter(sizes))


def _joined(parts: Parts) -> Lookups:
    """The lookups of one table in all batches, one batch after the other."""
    lengths = torch.cat([each for _, each in parts])
    return Lookups(torch.cat([each for each, _ in parts]), torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))


def _part(feature: Any) -> tuple[Int[Tensor, " N"], Int[Tensor, " B"]]:
    """Rows that one feature looks up, and how many per sample."""
    return feature.values().detach().cpu().long(), feature.lengths().detach().cpu().long()


def _together(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Int[Tensor, " N"], Int[Tensor, " B"]]:
    """Lookups of several features of a table, sample by sample."""
    if len(parts) == 1:
        return parts[0]
    lengths = torch.stack([each for _, each in parts])  # [F, B]
    per_sample = lengths.sum(dim=0)  # [B]
    first = per_sample.cumsum(0) - per_sample + lengths.cumsum(dim=0) - lengths  # [F, B] position among all lookups
    flat = lengths.flatten()  # [F*B]
    before = flat.cumsum(0) - flat  # [F*B] position as the features follow on one another
    values = torch.cat([each for each, _ in parts])  # [N]
    position = torch.arange(len(values)) + torch.repeat_interleave(first.flatten() - before, flat)
    return torch.empty_like(values).scatter(0, position, values), per_sample


def _features(batch: Any, where: str) -> dict[str, Any]:
    """The jagged tensor of each feature of a batch."""
    found: dict[str, Any] = {}
    for keyed in _keyed(batch):
        if keyed.variable_stride_per_key():
            raise ValueError(
                f"{where} has another number of samples for each feature, so lookups cannot be counted by sample; yield "
                "batches without repeated samples taken out"
            )
        repeated = sorted(found.keys() & set(keyed.keys()))
        if repeated:
            raise ValueError(
                f"{where} has {shown(repeated)} in two KeyedJaggedTensors, so it is unclear which is looked up; yield one"
            )
        found |= keyed.to_dict()
    if not found:
        raise ValueError(
            f"{where} is a {type(batch).__name__} without a KeyedJaggedTensor, so it says nothing of lookups; yield "
            "KeyedJaggedTensors, or batches with a `sparse_features`"
        )
    return found


def _keyed(batch: Any) -> Iterator[Any]:
    """The KeyedJaggedTensors that a batch is or holds."""
    if isinstance(batch, KeyedJaggedTensor):
        yield batch
    elif isinstance(getattr(batch, "sparse_features", None), KeyedJaggedTensor):
        yield batch.sparse_features
    else:
        parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else None
        for part in vars(batch).values() if parts is None and hasattr(batch, "__dict__") else parts or ():
            if isinstance(part, KeyedJaggedTensor):
                yield part
