"""Ranks that run a model under a plan file and under `DreamShardPlanner`, and compare it with the same model unsharded."""

import copy
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.types import DataType

from dreamshard.constraints import ANY_SHARDING
from dreamshard.planning import make_plan
from dreamshard.tables import Placement, TableSharding
from dreamshard.torchrec import load_plan, tables_of
from dreamshard.torchrec.planner import DreamShardPlanner
from tests.helpers.sharded_dlrm import RATE, copy_tables, failures_of, table_parts, train_a_step

BATCH, ROWS, DIM = 5, 37, 16


def shardings(ranks: int, per_host: int) -> dict[str, TableSharding]:
    """How each table of `Model` is sharded, by its path; together these are all types."""
    last, hosts = ranks - 1, ranks // per_host

    return {
        "bags.whole": TableSharding("table_wise", (), (last,)),
        "bags.columns": TableSharding("column_wise", ((0, 4), (4, 12), (12, DIM)), (0, last, 0)),
        "bags.rows": TableSharding("row_wise"),
        "bags.rows_of_host": TableSharding("table_row_wise", (), (hosts - 1,)),
        "bags.grid": TableSharding("grid_shard", ((0, 4), (4, DIM)), (hosts - 1, 0)),
        "bags.copies": TableSharding("data_parallel"),
        "bags.two_features": TableSharding("row_wise"),
        "bags.fp16_whole": TableSharding("table_wise", (), (0,)),
        "bags.fp16_rows": TableSharding("row_wise"),
        "inner.weighted.weighted_whole": TableSharding("table_wise", (), (0,)),
        "inner.weighted.weighted_rows": TableSharding("row_wise"),
        "inner.weighted.weighted_columns": TableSharding("column_wise", ((0, 12), (12, DIM)), (last, 0)),
        "sequences.sequence_whole": TableSharding("table_wise", (), (last,)),
        "sequences.sequence_columns": TableSharding("column_wise", ((0, 8), (8, DIM)), (last, 0)),
        "sequences.sequence_rows": TableSharding("row_wise"),
    }


TABLES = tuple(shardings(4, 2))
HALF = ("fp16_whole", "fp16_rows")


def _config(kind: type, path: str):
    name = path.rpartition(".")[2]
    features = ["two_features", "other"] if name == "two_features" else [name]
    data_type = DataType.FP16 if name in HALF else DataType.FP32
    return kind(name=name, num_embeddings=ROWS, embedding_dim=DIM, feature_names=features, data_type=data_type)


class Model(torch.nn.Module):
    """Tables for every sharding type, in three collections."""

    def __init__(self) -> None:
        super().__init__()
        bags, weighted = (
            [_config(EmbeddingBagConfig, t) for t in TABLES if t.startswith(path)] for path in ("bags", "inner")
        )
        sequences = [_config(EmbeddingConfig, t) for t in TABLES if t.startswith("sequences")]
        cpu = torch.device("cpu")
        self.bags = EmbeddingBagCollection(tables=bags, device=cpu)
        inner = EmbeddingBagCollection(tables=weighted, is_weighted=True, device=cpu)
        self.inner = torch.nn.ModuleDict({"weighted": inner})
        self.sequences = EmbeddingCollection(tables=sequences, device=cpu)

    def forward(self, batch: KeyedJaggedTensor) -> dict[str, torch.Tensor]:
        """The vectors of each feature."""
        plain = KeyedJaggedTensor(batch.keys(), batch.values(), lengths=batch.lengths())
        pooled, weighted, sequences = self.bags(plain), self.inner["weighted"](batch), self.sequences(plain)
        vectors_of = {key: vectors for outputs in (pooled, weighted) for key, vectors in outputs.to_dict().items()}
        return vectors_of | {key: sequence.values() for key, sequence in sequences.items()}


def features() -> list[str]:
    """Keys of a batch."""
    return [*(table.rpartition(".")[2] for table in TABLES), "other"]


def batch(rank: int) -> KeyedJaggedTensor:
    """The samples of a rank."""
    generator = torch.Generator().manual_seed(rank)
    lengths = torch.randint(0, 4, (len(features()) * BATCH,), generator=generator)
    values = torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator)
    weights = torch.rand(len(values), generator=generator)
    return KeyedJaggedTensor.from_lengths_sync(keys=features(), values=values, lengths=lengths, weights=weights)


def loss_of(outputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Depends on each vector in its own way."""
    ordered = [vectors.float() for _, vectors in sorted(outputs.items())]
    ramps = [torch.linspace(-1, 1, output.numel()).reshape(output.shape) * (n + 1) for n, output in enumerate(ordered)]
    return torch.stack([(output * ramp).sum() for output, ramp in zip(ordered, ramps, strict=True)]).sum()


def failures(ranks: int, per_host: int, port: int, folder: Path, hosts: int = 1) -> list[str]:
    """Train and plan on all ranks; returns tracebacks of those that differ. `per_host` ranks share an NVLink domain."""
    task = tables_of(Model()).task(ranks, 2**30, devices_per_host=per_host, constraints=ANY_SHARDING)
    placement = Placement(tuple(shardings(ranks, per_host).values()), ranks, per_host)
    (folder / "plan.json").write_text(make_plan(task, placement, "test").to_json())
    return failures_of(_rank, ranks, per_host // hosts, port, ranks, per_host, folder / "plan.json", hosts)


def _rank(ranks: int, per_host: int, path: Path, hosts: int) -> None:
    os.environ["TORCHREC_RESOLVED_POD_SIZE"] = str(hosts)
    torch.manual_seed(0)
    model = Model()
    _train_a_step(copy.deepcopy(model), load_plan(path, model), ranks)
    _plan_together(model, dist.get_rank(), ranks, per_host)


def _sharders() -> list:
    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": RATE}
    return [EmbeddingBagCollectionSharder(fused_params=fused), EmbeddingCollectionSharder(fused_params=fused)]


def _train_a_step(reference: Model, plan, ranks: int) -> None:
    """A sharded model has the outputs of `reference` and, after a step, its weights; all ranks together hold all of them."""
    sharded = DistributedModelParallel(
        copy.deepcopy(reference), device=torch.device("cpu"), plan=plan, sharders=_sharders()
    )
    before = {name: value.clone() for name, value in reference.state_dict().items()}
    copy_tables(reference, sharded)
    train_a_step(reference, sharded, lambda number: (batch(number),), loss_of, tolerance=_tolerance)
    after, held = reference.state_dict(), Counter()
    for name, part, _ in table_parts(sharded.state_dict()):
        held[name] += part.numel()
        assert float((after[name] - before[name]).abs().max()) > 0, f"{name} did not change, so nothing is compared"
    everyones = [Counter()] * ranks
    dist.all_gather_object(everyones, held)
    copies = {name: ranks if "copies" in name else 1 for name in after}
    assert sum(everyones, Counter()) == {name: copies[name] * ROWS * DIM for name in after}


def _tolerance(name: str) -> float:
    return 2e-2 if name.removesuffix(".weight").endswith(HALF) else 1e-5


def _plan_together(model: Model, rank: int, ranks: int, per_host: int) -> None:
    """The planner gives all ranks one plan that runs, or one error."""
    topology = None if ranks > per_host else Topology(ranks, "cpu", local_world_size=per_host)  # None: its own
    pinned = {"whole": ParameterConstraints(sharding_types=["table_wise"])}
    planner = DreamShardPlanner(topology, batch_size=BATCH, costs="a100", constraints=pinned)
    plan = planner.collective_plan(model, _sharders(), dist.group.WORLD)
    everyones = [None] * ranks
    dist.all_gather_object(everyones, plan.plan)
    assert all(received == plan.plan for received in everyones)
    sharded = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=_sharders())
    assert set(sharded(batch(rank))) == set(features())
    with pytest.raises(ValueError, match=f"topology has {2 * ranks} ranks, but the process group {ranks}"):
        DreamShardPlanner(Topology(world_size=2 * ranks, compute_device="cpu"), costs="a100").collective_plan(model)
    unknown = {"nothing": ParameterConstraints()} if rank == 0 else None
    with pytest.raises(ValueError, match=r"given for \['nothing'"):
        DreamShardPlanner(topology, costs="a100", constraints=unknown).collective_plan(Model(), _sharders())
