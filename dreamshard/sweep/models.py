"""Tasks of one public model: all tables of a bundled list, and variants of it as it drifts."""

from dataclasses import replace
from functools import cache

import torch

from dreamshard.fixed_model import MODEL, split_tasks, split_to_fit
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.accelerator_spec import AcceleratorSpec
from dreamshard.workloads import bundled_lists, read_tables

_MEMORY_SHARE = 0.875  # of a device's memory that tables may take
_MOST = 2.0  # times as many rows or lookups, or as few
_REMOVED = 0.1  # of the tables, at most
_NUM_SPLIT = 10  # training tasks with busy tables split by columns at random


@cache
def tables_of(source: str) -> Tables:
    """The tables of a bundled list."""
    return read_tables(bundled_lists()[source]).tables


def training_tasks(source: str, spec: AcceleratorSpec, num_devices: int, count: int, seed: int) -> list[PlacementTask]:
    """Variants, and the model with its busy tables split, so that what such shards cost is learnt."""
    generator = torch.Generator().manual_seed(seed)
    model = _model(source, spec, num_devices)
    return [*_variants(model, count, generator), *split_tasks(model, _NUM_SPLIT, generator)]


def heldout_tasks(source: str, spec: AcceleratorSpec, num_devices: int, count: int, seed: int) -> list[PlacementTask]:
    """The model itself, and `count - 1` variants that no training sees."""
    model = _model(source, spec, num_devices)
    return [model, *_variants(model, count - 1, torch.Generator().manual_seed(2**20 + seed))]


def _model(source: str, spec: AcceleratorSpec, num_devices: int) -> PlacementTask:
    memory_bytes = int(_MEMORY_SHARE * spec.memory_bytes)
    task = PlacementTask(tables_of(source), num_devices, memory_bytes, "fp32", "rowwise_adagrad", MODEL)
    return replace(split_to_fit(task), name=MODEL)


def _variants(model: PlacementTask, count: int, generator: torch.Generator) -> list[PlacementTask]:
    """Up to a tenth of the tables missing, each other with up to twice or half as many rows and lookups."""
    return [replace(model, tables=_drifted(model.tables, generator), name=f"variant-{v:03}") for v in range(count)]


def _drifted(tables: Tables, generator: torch.Generator) -> Tables:
    most_removed = int(_REMOVED * len(tables))
    removed = int(torch.randint(most_removed + 1, (), generator=generator))
    kept = tables.select(torch.randperm(len(tables), generator=generator)[: len(tables) - removed].sort().values)
    rows_factor, lookups_factor = (_MOST ** (2 * torch.rand(len(kept), generator=generator) - 1) for _ in range(2))
    rows = (kept.rows * rows_factor).round().long().clamp(min=1)
    lookups = (kept.lookups * lookups_factor).round().long()
    unique = torch.minimum((kept.unique_rows * lookups_factor).round().long(), torch.minimum(rows, lookups))
    pooling = kept.pooling_factor * lookups / kept.lookups.clamp(min=1)
    return replace(
        kept, rows=rows, lookups=lookups, unique_rows=unique, pooling_factor=pooling.to(kept.pooling_factor.dtype)
    )
