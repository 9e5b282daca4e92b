"""Meta's own plan of a production model, by TorchRec's estimator and by the roofline of a B200, against other plans.

The bundled list `meta-production-2026` has 1,933 pooled tables, and two of sequences, which are left out, on 96 ranks with
138 GB for tables and 2,560 samples each. Meta's hardware is not named; its plan has whole tables and columns only.

Tables are fp16 with row-wise Adagrad on 12 hosts of 8. TorchRec's estimator has the B200's bandwidths; its vectors are fp16,
the roofline's fp32. A row has the slowest rank by each. TorchRec's planner stops after 200 s.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
import pandas as pd
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.utils import build_sharder_data_map, sharder_name

from dreamshard.constraints import ANY_SHARDING, UNCONSTRAINED
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.rivals.torchrec_planner import TorchRecPlanner, local_batch_size, module_of, parameter_constraints
from dreamshard.search import RooflinePlacer
from dreamshard.tables import Placement, TableSharding
from dreamshard.tasks import PlacementTask, violation
from dreamshard.torchrec import sharding_options, tables_of
from dreamshard.workloads import bundled_lists
from dreamshard.workloads.table_list import check_records, model_tables
from tests.benchmarks.hugectr import HugeCtrPlanner
from tests.benchmarks.measuring import Row, row

B200, DEVICES, PER_HOST, MEMORY_BYTES, SAMPLES = PRESETS["b200"], 96, 8, 138 * 10**9, 2560
COLUMNS = ["name", "rows", "dim", "pooling_factor", "num_poolings"]


def rows(quick: bool = False) -> Iterator[Row]:
    """Milliseconds of the slowest rank by the roofline; Meta's plan is the reference."""
    logging.disable(logging.CRITICAL)
    task, meta = meta_plan()
    ours, by_columns = RooflinePlacer(B200), replace(task, constraints=UNCONSTRAINED)
    plans = {"Meta's plan": meta, "dreamshard, whole tables and columns": ours.place(by_columns)}
    plans |= {"dreamshard, every type": ours.place(task), "HugeCTR's planner": HugeCtrPlanner(B200).place(task)}
    if not quick:
        plans["TorchRec's planner"] = TorchRecPlanner(B200, timeout_s=200).place(task)
    meta_ms = float(ours.predict(task, meta).overall_ms())
    for name, plan in plans.items():
        assert not violation(task, plan, is_measured=True), name
        text = f"{name}: slowest rank by TorchRec's estimator {estimate_ms(task, plan).max():.1f} ms, by the roofline"
        yield row(text, float(ours.predict(task, plan).device_ms().max()), "ms", None, meta_ms)


def meta_plan() -> tuple[PlacementTask, Placement]:
    """The pooled tables, and Meta's plan of them."""
    listed = pd.read_csv(bundled_lists()["meta-production-2026"])
    listed = listed[listed.output == "pooled"]
    tables = model_tables(check_records({line["name"]: line for line in listed[COLUMNS].to_dict("records")})).tables
    how = "fp16", "rowwise_adagrad", "production", PER_HOST, DEVICES * SAMPLES
    task = PlacementTask(tables, DEVICES, MEMORY_BYTES, *how)
    shardings = []
    for dim, width, ranks in zip(listed.dim, listed.shard_dim, listed.ranks, strict=True):
        columns = tuple((start, min(start + width, dim)) for start in range(0, dim, width))
        shardings.append(TableSharding.by_columns(columns, [int(rank) for rank in ranks.split()]))
    return replace(task, constraints=ANY_SHARDING), Placement(tuple(shardings), DEVICES, PER_HOST)


def estimate_ms(task: PlacementTask, placement: Placement) -> np.ndarray:
    """`[D]` by TorchRec's estimator of each shard."""
    topology, constraints = TorchRecPlanner(B200).topology(task), parameter_constraints(task, [], ["fused"], 0)
    module, sharder = module_of(task), EmbeddingBagCollectionSharder()
    options = sharding_options(placement, tables_of(module).details, module, constraints, local_batch_size(task))
    estimator = EmbeddingPerfEstimatorFactory.create("default_estimator", topology=topology, constraints=constraints)
    estimator.estimate(options, build_sharder_data_map({sharder_name(sharder.module_type): sharder}))
    ms = np.zeros(task.num_devices)
    for shard in chain.from_iterable(option.shards for option in options):
        ms[shard.rank] += shard.perf.total
    return ms
