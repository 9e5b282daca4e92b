"""Bytes per rank, compared with TorchRec's own estimate for the same plans; bytes of tables, with fbgemm's own operators."""

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest
import torch

pytest.importorskip("torchrec")

from fbgemm_gpu import split_table_batched_embeddings_ops_training as fbgemm
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.utils import build_sharder_data_map, sharder_name
from torchrec.distributed.types import PipelineType
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from dreamshard.constraints import Constraints
from dreamshard.hardware.accelerator import hardware
from dreamshard.search import RooflinePlacer
from dreamshard.tables import Optimizer, Placement, Precision, TableSharding, even_columns
from dreamshard.tasks import NoPlacementError, PlacementTask, Shards, violation
from dreamshard.torchrec import sharding_options
from dreamshard.torchrec.planner import DreamShardPlanner
from tests.helpers.meta_models import bag, bags
from tests.helpers.tables import tables_of

MIB = 2**20
WHOLE = [TableSharding("table_wise", where=(d,)) for d in range(16)]
ROWS, COPIES = TableSharding("row_wise"), TableSharding("data_parallel")
ON_HOSTS = [TableSharding("table_row_wise", where=(h,)) for h in range(4)]
COLUMNS = [TableSharding("column_wise", even_columns(128, 4), tuple((d + k) % 16 for k in range(4))) for d in range(16)]
GRIDS = [TableSharding("grid_shard", even_columns(128, 2), (h, (h + 1) % 4)) for h in range(4)]
CACHED = [replace(sharding, cached_share=0.2) for sharding in (*WHOLE, ROWS)]
PLANS = {  # twenty tables on 16 ranks in 4 hosts
    "12 of 20 on one rank": [WHOLE[0]] * 12 + WHOLE[1:9],
    "whole": [*WHOLE, *WHOLE[:4]],
    "rows": [ROWS] * 20,
    "columns": [*COLUMNS, *COLUMNS[:4]],
    "rows of hosts": ON_HOSTS * 5,
    "grids": GRIDS * 5,
    "copies": [COPIES, *WHOLE, *WHOLE[:3]],
    "all": [*WHOLE[:7], ROWS, ROWS, *COLUMNS[:4], *ON_HOSTS, *GRIDS[:2], COPIES],
    "cached": [*CACHED[:16], *CACHED[:4]],
    "cached rows": CACHED[-1:] * 20,
    "half on one host": ON_HOSTS[:1] * 10 + WHOLE[4:14],
    "rows and columns": [ROWS] * 10 + COLUMNS[:10],
}


PIPELINES = {
    "none": PipelineType.NONE,
    "sparse_dist": PipelineType.TRAIN_SPARSE_DIST,
    "prefetch": PipelineType.TRAIN_PREFETCH_SPARSE_DIST,
}
CODECS = get_qcomm_codecs_registry(QCommsConfig(CommType.FP16, CommType.BF16), device=torch.device("cpu"))


def counted(plan, rows=2_000_000, lookups=1.0, ranks=16, optimizer=None, pipeline="none", **sharder):
    """`[D]` bytes of the shards of a plan by dreamshard and by TorchRec, and the task.

    TorchRec counts no gradients of copies, so copied tables are small here, as they are in plans.
    """
    sizes = [rows // 100 if sharding == COPIES else rows for sharding in plan]
    model = torch.nn.ModuleDict({"ebc": bags(*(bag(f"t{t}", size, 128) for t, size in enumerate(sizes)))})
    if optimizer is not None:
        apply_optimizer_in_backward(optimizer, model.parameters(), {"lr": 0.1})
    topology = Topology(ranks, "cuda", hbm_cap=2**40, local_world_size=4)
    sharders = [EmbeddingBagCollectionSharder(**sharder)]
    constraints = {f"t{t}": ParameterConstraints(pooling_factors=[lookups]) for t in range(len(plan))}
    nothing = FixedPercentageStorageReservation(0.0)
    planner = DreamShardPlanner(
        topology, 4096, costs="a100", storage_reservation=nothing, constraints=constraints, pipeline=pipeline
    )
    model_read = planner.model(model, sharders)
    task = planner.task(model_read, model, sharders)
    placement = Placement(tuple(plan), ranks, topology.intra_group_size)
    options = sharding_options(placement, model_read.details, model, constraints, 4096)
    estimator = EmbeddingStorageEstimator(topology, constraints, PIPELINES[pipeline], run_embedding_at_peak_memory=True)
    by_type = {sharder_name(one.module_type): one for one in sharders}
    estimator.estimate(options, build_sharder_data_map(by_type))
    theirs = torch.zeros(ranks, dtype=torch.int64)
    for shard in (shard for option in options for shard in option.shards):
        theirs[shard.rank] += shard.storage.hbm
    return Shards.of(task, placement).memory_bytes(), theirs, task


def is_near(ours, theirs):
    return bool((ours >= 0.95 * theirs).all() and (ours <= 1.2 * theirs).all())


@pytest.mark.parametrize("name", PLANS)
def test_shards_take_as_many_bytes_as_torchrec_counts(name):
    ours, theirs, task = counted(PLANS[name])
    assert is_near(ours, theirs)
    assert is_near(ours.max() + task.received_bytes, theirs.max()), "TorchRec leaves out the vectors that a rank gets"


def test_vectors_for_the_whole_batch_count_where_they_are_made():
    """A rank also gets 4,096 fp32 vectors of each table, and their gradients, which TorchRec leaves to the reserve."""
    for plan, ranks, mib in (
        ([ROWS] * 100, 64, 12_803),
        ([ROWS] * 20, 16, 641),
        (PLANS["12 of 20 on one rank"], 16, 390),
    ):
        ours, theirs, task = counted(plan, rows=64, ranks=ranks)
        assert [round(int(most) / MIB) for most in (theirs.max(), ours.max())] == [mib, mib]
        assert task.received_bytes == len(plan) * 4096 * 128 * 8


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, RowWiseAdagrad])
def test_state_and_inputs_of_pipelines_count_as_in_torchrec(optimizer, pipeline):
    for name in ("all", "half on one host"):
        ours, theirs, _ = counted(PLANS[name], optimizer=optimizer, pipeline=pipeline, lookups=50.0)
        assert is_near(ours, theirs)
    ours, theirs, _ = counted(PLANS["cached"], pipeline=pipeline, lookups=50.0)
    assert is_near(ours, theirs)


def test_quantised_collectives_have_buffers():
    plain, _, task = counted(PLANS["whole"])
    coded, _, other = counted(PLANS["whole"], qcomm_codecs_registry=CODECS)
    assert int(coded[0] - plain[0]) == 2 * 16 * 4096 * 128 * 2, "of two tables, two bytes for each of four"
    assert other.received_bytes / task.received_bytes == 10 / 8


def test_a_plan_that_only_fits_without_its_vectors_is_not_made():
    rows, ranks = [ROWS] * 20, 16
    ours, _, task = counted(rows)
    exact = replace(task, memory_bytes=int(ours.max()) + task.received_bytes)
    placement = Placement(tuple(rows), ranks, 4)
    assert violation(exact, placement) == ""
    assert violation(replace(exact, memory_bytes=exact.memory_bytes - 1), placement) != ""
    whole = replace(exact, constraints=Constraints(sharding_types=("table_wise",)))
    least = 2 * int(task.table_bytes[0]) + task.received_bytes
    placed = RooflinePlacer(hardware("a100")).place(replace(whole, memory_bytes=least))
    assert int(placed.device.bincount().max()) == 2
    with pytest.raises(NoPlacementError):
        RooflinePlacer(hardware("a100")).place(replace(whole, memory_bytes=least - 1))


NAMES = {"sgd": "EXACT_SGD", "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD", "adagrad": "EXACT_ADAGRAD"}  # of fbgemm
SIZES = [(100, 16), (37, 4)]
CPU = (fbgemm.ComputeDevice.CPU, fbgemm.EmbeddingLocation.HOST, "cpu", 1)
GPU = (fbgemm.ComputeDevice.CUDA, fbgemm.EmbeddingLocation.DEVICE, "meta", 2**21)  # without memory: 3.4e9 weights


@pytest.mark.parametrize(
    ("precision", "optimizer", "place"),
    [*product(get_args(Precision), NAMES, [CPU]), *product(get_args(Precision), get_args(Optimizer), [GPU])],
)
def test_a_task_counts_the_bytes_of_the_operator(precision, optimizer, place):
    compute, location, device, more = place
    operator = fbgemm.SplitTableBatchedEmbeddingBagsCodegen(
        [(more * rows, dim, location, compute) for rows, dim in SIZES],
        optimizer=EmbOptimType[NAMES.get(optimizer, optimizer.upper())],
        weights_precision=SparseType(precision),
        cache_precision=SparseType.FP32,  # of a cache that these tables do not have
        device=torch.device(device),
    )
    tensors = dict(operator.named_buffers()) | dict(operator.named_parameters())
    kept = [t for name, t in tensors.items() if name.rpartition("_")[0] in ("weights", "momentum1", "momentum2")]
    held = sum(t.numel() * t.element_size() for t in kept if t.is_floating_point() or t.dtype == torch.uint8)
    rows, dims = zip(*SIZES, strict=True)
    task = PlacementTask(tables_of([more * count for count in rows], dims), 1, 2**20, precision, optimizer)
    assert int(task.table_bytes.sum()) == held
