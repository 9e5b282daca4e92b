"""Ranks that take a training step of tables that are sharded in any way, and the same step of one that shards nothing."""

import datetime
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from dreamshard.constraints import Constraints
from dreamshard.placement import SHARDING_TYPES, Placement
from dreamshard.shards import Shards
from dreamshard.tables import NUM_BINS, Optimizer, Precision, Tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.cluster.passes import Team
from dreamshard.testbeds.cluster.sharded.exchange import Pooled, Teams
from dreamshard.testbeds.cluster.sharded.job import ShardingJob, rank_shards
from dreamshard.testbeds.cluster.sharded.passes import ShardedStep
from dreamshard.testbeds.fused_op import LEARNING_RATE
from dreamshard.testbeds.shard_runner import ShardRunner
from dreamshard.workloads import Lookups

NUM_RANKS = 4
EPSILON = 1e-8


@dataclass(frozen=True)
class DrawnLookups:
    """Bags of 0 to 4 rows, drawn by the table's name; `rows` of each table."""

    batch_size: int
    rows: Mapping[str, int]

    def __call__(self, name: str) -> Lookups:
        generator = torch.Generator().manual_seed(sum(name.encode()))
        lengths = torch.randint(5, (self.batch_size,), generator=generator)
        indices = torch.randint(self.rows[name], (int(lengths.sum()),), generator=generator)
        return Lookups(indices, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]))


@dataclass(frozen=True)
class Case:
    """A step of tables that are sharded in some way.

    Attributes:
        rows: of each table.
        dim: of each table.
    """

    name: str
    placement: Placement
    rows: tuple[int, ...]
    dim: tuple[int, ...]
    batch_size: int = 8
    optimizer: Optimizer = "sgd"
    precision_of: Mapping[str, Precision] | None = None

    @property
    def task(self) -> PlacementTask:
        """With room for all."""
        count = len(self.rows)
        tables = Tables(
            tuple(f"t{t}" for t in range(count)),
            torch.tensor(self.rows),
            torch.tensor(self.dim),
            torch.full((count,), 2.0),
            torch.ones(count, NUM_BINS) / NUM_BINS,
            torch.full((count,), 2 * self.batch_size),
            torch.ones(count, dtype=torch.int64),
        )
        return PlacementTask(
            tables,
            self.placement.num_devices,
            2**40,
            optimizer=self.optimizer,
            precision_of=self.precision_of or {},
            constraints=Constraints(sharding_types=SHARDING_TYPES),
        )

    @property
    def lookups(self) -> DrawnLookups:
        return DrawnLookups(self.batch_size, dict(zip(self.task.tables.names, self.rows, strict=True)))

    def weights(self, table: int) -> Tensor:
        """Before the step; exact in half precision, too."""
        generator = torch.Generator().manual_seed(table)
        return torch.randint(-8, 8, (self.rows[table], self.dim[table]), generator=generator) / 8

    def gradients(self) -> list[Tensor]:
        """Of the pooled vectors of the whole batch, by table."""
        generator = torch.Generator().manual_seed(7)
        return [torch.randint(-8, 8, (self.batch_size, dim), generator=generator) / 8 for dim in self.dim]

    def expected(self) -> tuple[list[Tensor], list[Tensor]]:
        """Pooled vectors of the whole batch, and weights after the step, by table, without any sharding."""
        pooled, after = [], []
        for t, (name, gradient) in enumerate(zip(self.task.tables.names, self.gradients(), strict=True)):
            weight, lookups = self.weights(t).requires_grad_(), self.lookups(name)
            bags = torch.nn.functional.embedding_bag(lookups.indices, weight, lookups.offsets[:-1], mode="sum")
            bags.backward(gradient)
            pooled.append(bags.detach())
            square = weight.grad.square()
            if self.optimizer == "rowwise_adagrad":
                square = square.mean(dim=1, keepdim=True)
            scale = 1.0 if self.optimizer == "sgd" else square.sqrt() + EPSILON
            after.append(weight.detach() - LEARNING_RATE * weight.grad / scale)
        return pooled, after


@dataclass
class StepResult:
    """What one rank has after a step.

    Attributes:
        samples: first and last (exclusive) sample of the rank.
        pooled: of its samples, by table.
        weights: table, first row, first column and values of each of its shards.
        milliseconds: of lookups, their collectives, those of gradients, updates, and the exchange of indices.
    """

    samples: tuple[int, int]
    pooled: list[Tensor]
    weights: list[tuple[int, int, int, Tensor]]
    milliseconds: list[float]


def run_steps(cases: Sequence[Case], folder: Path) -> dict[str, list[StepResult]]:
    """The results of each case's ranks, all taken by the same processes."""
    multiprocessing.set_forkserver_preload([__name__])  # so that torch is imported once
    mp.start_processes(_rank, (list(cases), str(folder)), NUM_RANKS, start_method="forkserver")
    results = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(NUM_RANKS)]
    return {case.name: [results[r][case.name] for r in range(case.placement.num_devices)] for case in cases}


def _rank(rank: int, cases: list[Case], folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    store = dist.FileStore(f"{folder}/store", NUM_RANKS)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS, timeout=timeout)
    groups: dict[tuple[int, ...], Team] = {}
    formed: set[tuple[int, ...]] = set()
    results = {}
    for case in cases:
        task = case.task
        jobs = list(ShardingJob.each(range(task.num_devices), task, Shards.of(task, case.placement)))
        for members in dict.fromkeys(members for job in jobs for members in job.groups):
            if members not in formed:
                formed.add(members)
                group = dist.new_group(list(members))
                if rank in members:
                    groups[members] = Team(members.index(rank), len(members), group)
        if rank < task.num_devices:
            teams = Teams(*(groups[members] for members in jobs[rank].groups))
            results[case.name] = _step(case, jobs[rank], teams)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _step(case: Case, job: ShardingJob, teams: Teams) -> StepResult:
    setup = TestbedSetup(num_devices=len(job.members), batch_size=case.batch_size, lookups=case.lookups)
    step = ShardedStep(job, ShardRunner(setup, torch.device("cpu")), teams)
    for operator in step.operators.operators:
        for shard, weight in zip(operator.shards, operator.weights, strict=True):
            weight.copy_(_part(case.weights(shard.table_index), shard.first_row, shard.first_column, weight.shape))
    pooled, forward_ms, forward_comm_ms = step.forward()
    rank, counts = teams.everyone.rank, step.counts
    start = sum(counts[:rank])
    own = slice(start, start + counts[rank])
    tables = [torch.full((counts[rank], dim), torch.nan) for dim in case.dim]
    given = _map_columns(case, pooled, lambda table, columns, part: tables[table][:, columns].copy_(part))
    gradients = case.gradients()
    gradient = _map_columns(case, given, lambda table, columns, part: part.copy_(gradients[table][own, columns]))
    backward_comm_ms, backward_ms = step.backward(gradient)
    weights = [
        (shard.table_index, shard.first_row, shard.first_column, weight.detach().float().clone())
        for operator in step.operators.operators
        for shard, weight in zip(operator.shards, operator.weights, strict=True)
    ]
    spent = [forward_ms, forward_comm_ms, backward_comm_ms, backward_ms, step.exchange_indices()]
    return StepResult((own.start, own.stop), tables, weights, spent)


def _map_columns(case: Case, pooled: Pooled, work) -> Pooled:
    """Call `work(table, columns, part)` for the columns of each shard among what was exchanged; returns a copy."""
    copied = Pooled(
        device=tuple(part.clone() for part in pooled.device),
        everywhere=pooled.everywhere.clone(),
        hosts=tuple(part.clone() for part in pooled.hosts),
        copies=pooled.copies.clone(),
    )
    for d, shards in enumerate(rank_shards(case.task, Shards.of(case.task, case.placement))):
        for shard in shards:
            matrix = {
                "device": copied.device[d],
                "everywhere": copied.everywhere,
                "host": copied.hosts[d // case.placement.devices_per_host],
                "copies": copied.copies,
            }[shard.route]
            columns = slice(shard.first_column, shard.first_column + shard.dim)
            work(shard.table_index, columns, matrix[:, shard.offset : shard.offset + shard.dim])
    return copied


def _part(whole: Tensor, row: int, column: int, shape: torch.Size) -> Tensor:
    return whole[row : row + shape[0], column : column + shape[1]]
