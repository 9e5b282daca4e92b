"""Every way to shard: TorchRec's planner against ours, by the simulated testbed.

TorchRec's `EmbeddingShardingPlanner` considers all ways to shard that it does by default, with its default proposers, on a
topology with the preset's bandwidths and its 8 devices per host. Ours places by the preset's roofline. Costs are exact. Times
are CPU seconds of the second call; TorchRec's planner is stopped after five minutes, with its best plan so far.
Devices have 80 GiB, tables are fp32 with row-wise Adagrad, and a step has 65,536 samples.

The search was built while looking at those cases. Ten draws of tables of another list, on other presets with seven eighths of
their memory, were not looked at; their rows are geometric means of ours over theirs, with 95 % intervals over the draws.
"""

import logging
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats

from dreamshard.constraints import ANY_SHARDING
from dreamshard.hardware.accelerator import PRESETS, AcceleratorSpec
from dreamshard.rivals.torchrec_planner import TorchRecPlanner
from dreamshard.search import RooflinePlacer
from dreamshard.shards import violation
from dreamshard.tables import DEFAULT_BATCH, Tables
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import read_tables
from tests.benchmarks.measuring import Row, row

A100 = PRESETS["a100"]
H100 = PRESETS["h100"]
H200 = PRESETS["h200"]
V100 = PRESETS["v100"]

MEMORY_BYTES = 80 * 2**30
TIMEOUT_S = 300
SHARED_TIME = 0.1  # of TorchRec's that ours may take
UNSEEN = range(201, 211)  # seeds of draws


def rows(quick: bool = False) -> Iterator[Row]:
    """Cost and time of ours, with TorchRec's planner as the reference."""
    logging.disable(logging.CRITICAL)  # TorchRec's planner logs every call
    for spec in (A100,) if quick else (A100, H100):
        for task in _tasks(quick):
            yield from _compared(task, spec)
    for spec in () if quick else (H200, V100):
        for num_devices in (8, 16):
            yield from _unseen(spec, num_devices)


def _tasks(quick: bool) -> Iterator[PlacementTask]:
    mlperf = bundled("mlperf-dlrm-dcnv2")
    for num_devices in (8,) if quick else (8, 16, 64):
        yield _task(mlperf, num_devices, f"mlperf x {num_devices}")
    for name, count, num_devices in (("medium", 100, 8), ("large", 500, 64)):
        if not quick or count == 100:
            pool = bundled(f"nvidia-synthetic-{name}")
            drawn = torch.randperm(len(pool), generator=torch.Generator().manual_seed(0))[:count]
            yield _task(pool.select(drawn), num_devices, f"{count} x {num_devices}")


def bundled(name: str) -> Tables:
    return read_tables(str(resources.files("dreamshard.workloads") / "data" / f"{name}.csv"))


def _task(tables: Tables, num_devices: int, name: str, memory_bytes: int = MEMORY_BYTES) -> PlacementTask:
    return PlacementTask(
        tables,
        num_devices,
        memory_bytes,
        optimizer="rowwise_adagrad",
        name=name,
        batch_size=DEFAULT_BATCH,
        constraints=ANY_SHARDING,
    )


class _Pair(NamedTuple):
    """Our plan's kinds of shards, exact cost and CPU seconds, and TorchRec's."""

    own_kinds: str
    own_ms: float
    own_s: float
    their_kinds: str
    their_ms: float
    their_s: float


def _pair(task: PlacementTask, spec: AcceleratorSpec) -> _Pair:
    ours, rival = RooflinePlacer(spec), TorchRecPlanner(spec, TIMEOUT_S)
    ours.place(task)  # compiles
    found: list[str | float] = []
    for placer in (ours, rival):
        began = time.process_time()
        placement = placer.place(task)
        seconds = time.process_time() - began
        if problem := violation(task, placement):
            raise AssertionError(f"{task.name}: {problem}")
        kinds = Counter(sharding.sharding_type for sharding in placement.tables)
        found += [", ".join(f"{count} {kind}" for kind, count in kinds.most_common())]
        found += [float(ours.predict(task, placement).overall_ms()), seconds]
    return _Pair(*found)


def _compared(task: PlacementTask, spec: AcceleratorSpec) -> Iterator[Row]:
    pair, label = _pair(task, spec), f"{spec.name}, {task.name}"
    name = f"{label}: simulated ({pair.own_kinds}; TorchRec's: {pair.their_kinds})"
    yield row(name, pair.own_ms, "ms", None, pair.their_ms)
    yield row(f"{label}: CPU time of placing (a tenth of TorchRec's)", pair.own_s, "s", SHARED_TIME * pair.their_s)


def _unseen(spec: AcceleratorSpec, num_devices: int) -> Iterator[Row]:
    pool, memory_bytes = bundled("nvidia-synthetic-small"), int(0.875 * spec.memory_bytes)
    pairs = []
    for seed in UNSEEN:
        drawn = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))[:40]
        pairs.append(_pair(_task(pool.select(drawn), num_devices, f"draw {seed}", memory_bytes), spec))
    label = f"{spec.name}, {len(pairs)} unseen draws of 40 x {num_devices}"
    logs = np.log([pair.own_ms / pair.their_ms for pair in pairs])
    low, high = np.exp(stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs)))
    name = f"{label}: simulated, ours over theirs ({low:.3f}-{high:.3f})"
    yield row(name, float(np.exp(logs.mean())), "", None, 1.0)
    own_s, their_s = (
        statistics.median(seconds) for seconds in zip(*((p.own_s, p.their_s) for p in pairs), strict=True)
    )
    yield row(f"{label}: median CPU time of placing (a tenth of TorchRec's)", own_s, "s", SHARED_TIME * their_s)
