"""MLPerf's steps of DLRM-DCNv2 as a bound: the embedding part that the presets predict must not take longer than the step.

`data/mlperf-dlrm-dcnv2.csv` has mean steps from the logs of training_results v4.1, v5.0 and v5.1; results on GPUs that their
name, or in v5.1 their system file, does not tell are left out. The plan is HugeCTR's, for 60 GB per GPU and Adagrad as in the
submissions. HugeCTR splits rows where a placement here has columns, so its shards are costed as rows: each sends its partial
sums, between devices or within a host and then between hosts. Weights are fp32, vectors fp16, lookups Zipf's. Embeddings and
dense layers overlap in HugeCTR, but a step still takes at least as long as its embeddings alone.

A second row compares dreamshard's plan with HugeCTR's as a placer, both in TorchRec's ways to shard, by the same roofline.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch

from dreamshard.constraints import ANY_SHARDING
from dreamshard.hardware.accelerator import PRESETS, AcceleratorSpec
from dreamshard.hardware.roofline import sharding_costs
from dreamshard.placement import ON_ONE_HOST, SHARDING_TYPES, Placement, ShardingType, row_blocks
from dreamshard.rivals.hugectr import HugeCtrPlanner
from dreamshard.search import RooflinePlacer
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from tests.benchmarks.bench_sharding_types import bundled
from tests.benchmarks.measuring import Row, row

STEPS = Path(__file__).parent / "data" / "mlperf-dlrm-dcnv2.csv"
MEMORY_BYTES = 60 * 10**9


def rows() -> Iterator[Row]:
    """Predicted milliseconds of each cluster and batch, with the fastest measured step as the bar."""
    steps = pd.read_csv(STEPS).dropna()
    for (preset, devices, batch), measured in steps.groupby(["preset", "devices", "global_batch"]):
        spec, tables = PRESETS[preset], bundled("mlperf-dlrm-dcnv2")
        fields = {"constraints": ANY_SHARDING, "batch_size": int(batch)}
        task = PlacementTask(tables, int(devices), MEMORY_BYTES, "fp32", "adagrad", **fields)
        ours, theirs = RooflinePlacer(spec), HugeCtrPlanner(spec).place(task)
        compute_ms, comm_ms = embedding_ms(task, row_shards(task, theirs), spec)
        name = f"{int(devices)} x {preset}, batch {batch}"
        text = f"{name}, {len(measured)} results: compute {compute_ms:.2f} ms, communication {comm_ms:.2f} ms, both"
        yield row(text, compute_ms + comm_ms, "ms", float(measured.step_ms.min()))
        own_ms, their_ms = (float(ours.predict(task, plan).overall_ms()) for plan in (ours.place(task), theirs))
        yield row("- dreamshard's plan, and HugeCTR's as the reference", own_ms, "ms", None, their_ms)


def embedding_ms(task: PlacementTask, shards: Shards, spec: AcceleratorSpec) -> tuple[float, float]:
    """Compute of the slowest device, and communication of fp16 vectors: half of the batch's bytes in fp32."""
    batch = task.batch_size or 1
    costs, halved = (sharding_costs(shards, size, spec) for size in (batch, batch // 2))
    compute_ms = costs.phases_ms[..., 0] + costs.phases_ms[..., 3]
    return float(compute_ms.max()), float((halved.phases_ms[..., 1] + halved.phases_ms[..., 2]).max())


def row_shards(task: PlacementTask, placement: Placement) -> Shards:
    """The shards of HugeCTR's plan, with blocks of rows for ranges of columns."""
    found, per_host = [], placement.devices_per_host
    group, kind = (per_host, "table_row_wise") if placement.sharding_types & set(ON_ONE_HOST) else (1, "table_wise")
    sizes = zip(placement.tables, task.tables.rows.tolist(), task.tables.dim.tolist(), strict=True)
    for t, (sharding, rows_of, dim) in enumerate(sizes):
        copied = sharding.sharding_type == "data_parallel"
        places = sharding.where or range(placement.num_devices // (1 if copied else group))
        devices = places if copied else [place * group + part for place in places for part in range(group)]
        blocks = [(0, rows_of)] * len(devices) if copied else row_blocks(rows_of, len(devices))
        own: ShardingType = "data_parallel" if copied else kind
        found += [(t, d, SHARDING_TYPES.index(own), *block, 0, dim) for d, block in zip(devices, blocks, strict=True)]
    table, device, number, first, last, start, end = torch.tensor(found).T
    ends = torch.stack([first, last], dim=1), torch.stack([start, end], dim=1)
    return Shards(task, table, device, number, *ends, torch.full((len(table),), math.nan), per_host)
