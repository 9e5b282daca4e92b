"""Collect costs of shards on one device, in the design's order, until the time is up."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from dreamshard.files.locks import measuring
from dreamshard.shard_profiling.dataset import MeasuredShard, ShardWriter, known_indices
from dreamshard.shard_profiling.design import CollectionConfig, PlannedShard, PoolTable, collection_pool, planned_shards
from dreamshard.shard_profiling.pool_lookups import PoolLookups
from dreamshard.tables import concatenate
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.fused_op import require_fbgemm
from dreamshard.testbeds.machine import device_model, library_versions
from dreamshard.testbeds.shard_runner import DoesNotFitError, ShardRunner

PREFETCHED = 3
"""Number of shards whose lookups are drawn while one is measured."""

Progress = Callable[[int, int, str], None]
"""Called with the number of shards measured so far, the collection's size, and a summary of the last shard."""


@dataclass(frozen=True, kw_only=True)
class CollectionResult:
    """State of a collection after a call of `collect`.

    Attributes:
        known: shards measured by this call and earlier ones.
        measured: shards measured by this call.
        infeasible: those of `measured` that did not fit the device.
        complete: whether nothing is left to measure.
    """

    folder: str
    known: int
    measured: int
    infeasible: int
    complete: bool
    hardware: str


def collect(
    folder: Path,
    config: CollectionConfig,
    *,
    seconds: float,
    device_type: Literal["cpu", "cuda"],
    workers: int = 2,
    progress: Progress | None = None,
) -> CollectionResult:
    """Measure shards in the design's order; each is on disk as soon as it is measured.

    Args:
        folder: of the Parquet parts; shards that it already holds are skipped.
        seconds: time after which no further shard is started; at least one is measured.
        workers: threads that draw lookups.
        progress: called after each shard.

    Raises:
        ValueError: the folder holds another collection, there is no such device, or fbgemm is not installed.
    """
    start = time.monotonic()
    require_fbgemm()
    if device_type == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no GPU that torch can use, so nothing can be measured on one; give --device cpu")
    known = known_indices(folder, config.design)
    pool = collection_pool(config)
    plan = [shard for shard in islice(planned_shards(pool, config), config.num_shards) if shard.index not in known]
    lookups = PoolLookups(pool, config, workers)
    writer, measured, infeasible = ShardWriter(folder), 0, 0
    setup = TestbedSetup(
        num_devices=1,
        batch_size=config.batch_size,
        lookups=lookups,
        seed=config.seed,
        warmups=config.warmups,
        repeats=config.repeats,
    )
    runner = ShardRunner(setup, torch.device(device_type))
    with closing(lookups):
        for position, planned in enumerate(plan):
            if measured and time.monotonic() - start >= seconds:
                break
            for upcoming in plan[position : position + 1 + PREFETCHED]:
                lookups.prefetch([pool[t].name for t in upcoming.tables])
            shard = _measure(runner, planned, pool, lookups, config)
            writer.add(shard)
            measured += 1
            infeasible += shard.forward_ms is None
            if progress is not None:
                progress(len(known) + measured, config.num_shards, _summary(shard))
    return CollectionResult(
        folder=str(folder),
        known=len(known) + measured,
        measured=measured,
        infeasible=infeasible,
        complete=measured == len(plan),
        hardware=device_model(device_type),
    )


def default_device() -> Literal["cpu", "cuda"]:
    """A GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _measure(
    runner: ShardRunner,
    planned: PlannedShard,
    pool: Sequence[PoolTable],
    lookups: PoolLookups,
    config: CollectionConfig,
) -> MeasuredShard:
    pairs = zip(planned.tables, planned.dims, strict=True)
    tables = concatenate([lookups.table(pool[t].name, dim) for t, dim in pairs])
    outcome: dict[str, Any]
    try:
        with measuring():
            timing = runner.measure(tables, config.precision, config.optimizer, lookups.paused)
        outcome = {name: getattr(timing, name) for name in ("forward_ms", "backward_ms", "spread_ms", "repeats")}
    except DoesNotFitError as error:
        outcome = {"asked_bytes": error.asked_bytes, "free_bytes": error.free_bytes}
    return MeasuredShard(
        design=config.design,
        index=planned.index,
        alone_of=planned.alone_of,
        tables=tables,
        batch_size=config.batch_size,
        precision=config.precision,
        optimizer=config.optimizer,
        clock=runner.clock.name,
        hardware=device_model(runner.device.type),
        versions=library_versions(),
        measured_at=datetime.now(UTC).replace(tzinfo=None),
        **outcome,
    )


def _summary(shard: MeasuredShard) -> str:
    if shard.forward_ms is None or shard.backward_ms is None:
        return f"{len(shard.tables)} tables did not fit"
    return f"{len(shard.tables)} tables {shard.forward_ms:.3g} + {shard.backward_ms:.3g} ms"
