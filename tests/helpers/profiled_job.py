"""A training job of TorchRec on gloo ranks that profiles its steps.

torchrun ... -m tests.helpers.profiled_job FOLDER [PLAN]
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.optimizers import in_backward_optimizer_filter

from dreamshard.constraints import ANY_SHARDING
from dreamshard.planning import make_plan
from dreamshard.tables import Placement, TableSharding
from dreamshard.tasks import PlacementTask
from dreamshard.torchrec import load_plan, profiled_steps, record, tables_of
from dreamshard.workloads import ModelTables

TABLES, RANKS, BATCH, STEPS = 30, 4, 64, 3
NAMES = [f"t{t:02}" for t in range(TABLES)]
CPU = torch.device("cpu")
FUSED = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.1}
SHARDERS = [EmbeddingBagCollectionSharder(fused_params=FUSED)]


class Model(torch.nn.Module):
    """Tables of many sizes and a dense layer; the same weights on all ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = [{"num_embeddings": 1000 * (1 + t % 7), "embedding_dim": 8 << t % 4} for t in range(TABLES)]
        named = zip(NAMES, sizes, strict=True)
        tables = [EmbeddingBagConfig(name=name, feature_names=[name], **size) for name, size in named]
        self.bags = EmbeddingBagCollection(tables=tables, device=CPU)
        self.dense = torch.nn.Linear(sum(table.embedding_dim for table in tables), 1)

    def forward(self, batch: KeyedJaggedTensor) -> torch.Tensor:
        """One number per sample."""
        return self.dense(self.bags(batch).values())


def batch(seed: int) -> KeyedJaggedTensor:
    """Samples of a rank; later tables are looked up more often."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.cat([torch.randint(0, 2 + t, (BATCH,), generator=generator) for t in range(TABLES)])
    return KeyedJaggedTensor.from_lengths_sync(
        NAMES, torch.randint(0, 1000, (int(lengths.sum()),), generator=generator), lengths
    )


def placement() -> Placement:
    """Rank 0 has most tables; two are row-wise and one is in columns."""
    shardings = [TableSharding("table_wise", (), (0 if t % 2 else t % RANKS,)) for t in range(TABLES)]
    shardings[3] = shardings[4] = TableSharding("row_wise")
    shardings[7] = TableSharding("column_wise", ((0, 32), (32, 64)), (1, 2))
    return Placement(tuple(shardings), RANKS, RANKS)


def tables() -> ModelTables:
    """Of the job, with the lookups of four batches."""
    return record(tables_of(Model(), sharders=SHARDERS), [batch(100 + k) for k in range(4)])


def task() -> PlacementTask:
    """Of its tables, on ranks with room for all."""
    return tables().task(RANKS, 2**40, batch_size=BATCH * RANKS, constraints=ANY_SHARDING)


def profile(folder: Path, *plan: Path) -> None:
    """Run the job by its own placement or by a plan; raises with what its ranks printed."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    how = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "capture_output": True, "text": True, "timeout": 150}
    ran = subprocess.run([*launcher, "-m", __name__, *map(str, (folder, *plan))], check=False, **how)
    assert not ran.returncode, ran.stderr[-15000:]


def main(folder: Path, plan: Path | None = None) -> None:
    """One rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = Model()
    if plan is None:
        plan = folder.with_name(f"{folder.name}-{dist.get_rank()}.json")
        plan.write_text(make_plan(task(), placement(), "test").to_json())
    sharded = DistributedModelParallel(model, device=CPU, plan=load_plan(plan, model), sharders=SHARDERS)
    optimizer = torch.optim.SGD(dict(in_backward_optimizer_filter(sharded.named_parameters())).values(), 0.1)
    with profiled_steps(folder, sharded, tables(), batch_size=BATCH, steps=STEPS) as profiler:
        for step in range(STEPS + 3):
            optimizer.zero_grad()
            sharded(batch(RANKS * step + dist.get_rank())).sum().backward()
            optimizer.step()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
