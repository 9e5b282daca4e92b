"""Collect costs of shards on one device, or on many ranks at once, in the design's order, until the time is up."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import torch

from dreamshard.files.locks import measuring
from dreamshard.shard_profiling.dataset import MeasuredShard, ShardWriter, known_indices
from dreamshard.shard_profiling.design import CollectionConfig, PlannedShard, PoolTable, collection_pool, planned_shards
from dreamshard.shard_profiling.pool_lookups import PoolLookups
from dreamshard.tables import concatenate
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.cluster.messages import StreamJob
from dreamshard.testbeds.cluster.rank_launcher import RankTrouble
from dreamshard.testbeds.cluster.rank_source import RankSource, measurement_error
from dreamshard.testbeds.fused_op import require_fbgemm
from dreamshard.testbeds.machine import device_model, library_versions
from dreamshard.testbeds.shard_runner import DoesNotFitError, ShardRunner

PREFETCHED = 3
"""Number of shards whose lookups are drawn while one is measured."""

SHARD_TIMEOUT_S = 900.0
"""The longest time in which no rank measures a shard: lookups of sixty tables are drawn, and it is measured."""

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
    ranks: RankSource | None = None,
) -> CollectionResult:
    """Measure shards in the design's order; each is on disk as soon as it is measured.

    Args:
        folder: of the Parquet parts; shards that it already holds are skipped.
        seconds: time after which no further shard is started; at least one is measured.
        workers: threads that draw lookups, of each rank if there are several.
        progress: called after each shard.
        ranks: that measure a share of the shards each; None to measure in this process.

    Raises:
        MeasurementError: a rank died or hung.
        ValueError: the folder holds another collection, there is no such device, or fbgemm is not installed.
    """
    require_fbgemm()
    hardware = _hardware(device_type, ranks)
    known = known_indices(folder, config.design)
    plan = islice(planned_shards(collection_pool(config), config), config.num_shards)
    wanted = [shard.index for shard in plan if shard.index not in known]
    writer, measured, infeasible = ShardWriter(folder), 0, 0

    def keep(shard: MeasuredShard) -> None:
        nonlocal measured, infeasible
        writer.add(shard)
        measured += 1
        infeasible += shard.forward_ms is None
        if progress is not None:
            progress(len(known) + measured, config.num_shards, _summary(shard))

    share = ShareOfShards(config, tuple(wanted), seconds, workers, shares_host=ranks is None)
    if ranks is not None:
        _on_ranks(ranks, device_type, share, keep)
    else:
        for shard in share(torch.device(device_type)):
            keep(shard)
    return CollectionResult(
        folder=str(folder),
        known=len(known) + measured,
        measured=measured,
        infeasible=infeasible,
        complete=measured == len(wanted),
        hardware=hardware,
    )


@dataclass(frozen=True)
class ShareOfShards:
    """The work of one device, picklable for a rank: measures shards of a design, and yields each.

    Attributes:
        indices: of the shards, in the order of measuring.
        seconds: time after which no further shard is started; at least one is measured.
        workers: threads that draw lookups.
        shares_host: whether others may measure on this host, so that each shard waits for its lock.
    """

    config: CollectionConfig
    indices: tuple[int, ...]
    seconds: float
    workers: int
    shares_host: bool

    def __call__(self, device: torch.device) -> Iterator[MeasuredShard]:
        """Measure on `device`."""
        start = time.monotonic()
        config, wanted = self.config, set(self.indices)
        pool = collection_pool(config)
        plan = [shard for shard in islice(planned_shards(pool, config), config.num_shards) if shard.index in wanted]
        lookups = PoolLookups(pool, config, self.workers)
        setup = TestbedSetup(
            num_devices=1,
            batch_size=config.batch_size,
            lookups=lookups,
            seed=config.seed,
            warmups=config.warmups,
            repeats=config.repeats,
        )
        runner = ShardRunner(setup, device)
        with closing(lookups):
            for position, planned in enumerate(plan):
                if position and time.monotonic() - start >= self.seconds:
                    break
                for upcoming in plan[position : position + 1 + PREFETCHED]:
                    lookups.prefetch([pool[t].name for t in upcoming.tables])
                with measuring() if self.shares_host else nullcontext():
                    shard = _measure(runner, planned, pool, lookups, config)
                yield shard


def _on_ranks(
    source: RankSource, device_type: Literal["cpu", "cuda"], whole: ShareOfShards, keep: Callable[[MeasuredShard], None]
) -> None:
    """Let each of D ranks measure every D-th shard, and keep all in the order they come.

    Raises:
        MeasurementError: a rank died or hung; what was kept stays.
    """
    everyone = tuple(range(0 if source.layout is None else len(source.layout.ranks)))
    busy = everyone[: len(whole.indices)]
    try:
        with measuring():
            ranks = source.running(len(everyone), device_type)
            ranks.join(device_type, None, everyone)
            for rank in busy:
                ranks.send(StreamJob(replace(whole, indices=whole.indices[rank :: len(busy)])), [rank])
            ranks.collect(busy, SHARD_TIMEOUT_S, lambda shard: keep(cast(MeasuredShard, shard)))
    except RankTrouble as trouble:
        source.end_ranks()
        raise measurement_error(trouble, "shards", len(everyone), source, None) from None
    except BaseException:
        source.end_ranks()  # interrupted: they would keep measuring
        raise


def _hardware(device_type: Literal["cpu", "cuda"], ranks: RankSource | None) -> str:
    """Model of the device, or of all ranks' devices.

    Raises:
        ValueError: there is no such device, or ranks have devices of several models.
    """
    if ranks is not None and ranks.layout is not None:
        ranks.layout.hardware(range(len(ranks.layout.ranks)), device_type)
        gpu = ranks.layout.ranks[0].gpu
        return gpu.model if device_type == "cuda" and gpu is not None else device_model("cpu")
    if device_type == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no GPU that torch can use, so nothing can be measured on one; give --device cpu")
    return device_model(device_type)


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
