"""Operators of every way to shard add up to a step without sharding, and ranks agree on what they exchange."""

from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import ANY_SHARDING
from dreamshard.placement import SHARDING_TYPES, Placement, ShardingType, TableSharding, even_columns
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds import exchange
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.device import Device
from dreamshard.testbeds.exchange import Collectives, Team, Teams
from dreamshard.testbeds.jobs import ShardingJob, sample_starts
from dreamshard.testbeds.operators import EPSILON, LEARNING_RATE
from dreamshard.testbeds.step import operators_of
from dreamshard.workloads import Lookups
from tests.helpers.tables import roomy_task, tables_of_dims

BATCH, RANKS, PER_HOST = 9, 4, 2  # uneven shares of samples
ROWS, DIMS = 33, [8, 16, 8, 24, 16, 4]


def lookups_of(name: str) -> Lookups:
    """Bags of 0 to 4 rows, drawn by the table's name."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    lengths = torch.randint(5, (BATCH,), generator=generator)
    indices = torch.randint(ROWS, (int(lengths.sum()),), generator=generator)
    return Lookups(indices, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]))


def sharding(way: ShardingType, dim: int, first: int) -> TableSharding:
    places = RANKS // PER_HOST if way in ("table_row_wise", "grid_shard") else RANKS
    parts = 2 if way in ("column_wise", "grid_shard") else 1
    where = () if way in ("row_wise", "data_parallel") else tuple((first + part) % places for part in range(parts))
    return TableSharding(way, even_columns(dim, parts) if parts > 1 else (), where)


def placed(ways: tuple[ShardingType, ...], **options) -> tuple[PlacementTask, Shards, list[ShardingJob]]:
    task = replace(roomy_task(tables_of_dims(DIMS[: len(ways)], rows=ROWS), RANKS), constraints=ANY_SHARDING, **options)
    tables = tuple(sharding(way, DIMS[t], t) for t, way in enumerate(ways))
    shards = Shards.of(task, Placement(tables, RANKS, PER_HOST))
    return task, shards, list(ShardingJob.each(range(RANKS), task, shards))


def values(*shape: int, seed: int) -> torch.Tensor:
    """Exact in half precision, too."""
    return torch.randint(-8, 8, shape, generator=torch.Generator().manual_seed(seed)) / 8


def without_sharding(task: PlacementTask, gradients: list[torch.Tensor]) -> tuple[list, list]:
    """Pooled vectors of the whole batch, and weights after the step, by table."""
    pooled, after = [], []
    for t, name in enumerate(task.tables.names):
        weight, lookups = values(ROWS, DIMS[t], seed=t).requires_grad_(), lookups_of(name)
        bags = torch.nn.functional.embedding_bag(lookups.indices, weight, lookups.offsets[:-1], mode="sum")
        bags.backward(gradients[t])
        square = weight.grad.square()
        if task.optimizer == "rowwise_adagrad":
            square = square.mean(dim=1, keepdim=True)
        scale = 1.0 if task.optimizer == "sgd" else square.sqrt() + EPSILON
        pooled.append(bags.detach())
        after.append(weight.detach() - LEARNING_RATE * weight.grad / scale)
    return pooled, after


@pytest.mark.parametrize(
    ("ways", "options"),
    [
        *(((way,) * 3, {}) for way in SHARDING_TYPES),
        (SHARDING_TYPES, {}),
        (SHARDING_TYPES, {"precision_of": {"table-0": "fp16", "table-2": "fp16"}}),
        (SHARDING_TYPES, {"optimizer": "adagrad"}),
        (("row_wise", "table_row_wise", "data_parallel"), {"optimizer": "rowwise_adagrad"}),
    ],
)
def test_pooled_vectors_and_weights_are_those_without_sharding(ways, options):
    task, shards, jobs = placed(ways, **options)
    gradients = [values(BATCH, dim, seed=7) for dim in DIMS[: len(ways)]]
    expected, after = without_sharding(task, gradients)
    found = [torch.zeros_like(each) for each in expected]
    held = [torch.full_like(each, torch.nan) for each in after]
    starts = sample_starts(BATCH, RANKS)
    device = Device(TestbedSetup(num_devices=RANKS, batch_size=BATCH, lookups=lookups_of), torch.device("cpu"))
    denses = []
    for d, job in enumerate(jobs):
        operators = operators_of(job, device, d)
        if operators.dense is not None:
            operators.dense.weights.grad = None
        own = (shards.device == d).nonzero().flatten().tolist()  # in the order of the job's shards
        for operator in operators.operators:
            part = slice(None)
            numbers = [next(s for s, each in zip(own, job.shards, strict=True) if each is it) for it in operator.shards]
            for s, weight in zip(numbers, operator.weights, strict=True):
                table, rows, columns = int(shards.table[s]), slice(*shards.rows[s]), slice(*shards.columns[s])
                weight.copy_(values(ROWS, DIMS[table], seed=table)[rows, columns])
            pooled, given, at = operator.run(), [], 0
            for s, shard in zip(numbers, operator.shards, strict=True):
                table, columns = int(shards.table[s]), slice(*shards.columns[s])
                part = slice(starts[d], starts[d + 1]) if shard.route == "copies" else slice(None)
                found[table][part, columns] += pooled.detach()[:, at : at + shard.dim]
                given.append(gradients[table][part, columns])
                at += shard.dim
            pooled.backward(torch.cat(given, dim=1))
            keep = [(s, weight.detach()) for s, weight in zip(numbers, operator.weights, strict=True)]
            if operator.shards[0].route == "copies":
                denses.append((operators.dense, keep))
            else:
                hold(held, shards, keep)
    total = sum(dense.gradient.clone() for dense, _ in denses) if denses else None
    for dense, keep in denses:
        dense.weights.grad = total.clone()
        dense.step()
        hold(held, shards, keep)
    tolerance = {"rtol": 2e-3, "atol": 2e-3} if task.precision_of else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found, expected, **tolerance)
    torch.testing.assert_close(held, after, **tolerance)


def hold(held: list[torch.Tensor], shards: Shards, weights: list[tuple[int, torch.Tensor]]) -> None:
    for s, weight in weights:
        held[int(shards.table[s])][slice(*shards.rows[s]), slice(*shards.columns[s])] = weight.float()


def test_each_rank_receives_what_others_send_and_back(monkeypatch):
    _, _, jobs = placed(SHARDING_TYPES)
    sizes: list = []
    monkeypatch.setattr(
        exchange.dist,
        "all_to_all_single",
        lambda others, own, received, sent, group: sizes.append((sent, received, len(own), len(others))),
    )
    device = Device(TestbedSetup(num_devices=RANKS, batch_size=BATCH, lookups=lookups_of), torch.device("cpu"))
    reduced: list = []
    for name in ("_REDUCE_SCATTER", "_ALL_GATHER"):
        monkeypatch.setattr(exchange, name, lambda out, given, group: reduced.append({len(out), len(given)}))
    for rank, job in enumerate(jobs):
        everyone = Team(rank, RANKS, None)
        teams = Teams(everyone, Team(rank % PER_HOST, PER_HOST, None), Team(rank // PER_HOST, RANKS // PER_HOST, None))
        collectives = Collectives.of(job, teams, device)
        for work in (*collectives.forward, *collectives.backward):
            work()
    counts = [3, 2, 2, 2]
    there = sizes[::4]  # of each rank: all-to-all and the hosts' one, then back
    for a, (sent, received, own, others) in enumerate(there):
        assert (sum(sent), sum(received)) == (own, others)
        assert sent == [count * jobs[0].device_dims[a] for count in counts]
        assert [there[b][0][a] for b in range(RANKS)] == received
    assert [(received, sent) for sent, received, *_ in sizes[2::4]] == [
        (sent, received) for sent, received, *_ in there
    ]
    across = [sizes[4 * rank + 1] for rank in range(RANKS)]
    assert all(across[a][0][b // 2] == across[b][1][a // 2] for a, b in ((0, 2), (1, 3), (2, 0), (3, 1)))
    rows = jobs[0].everywhere_dims * 3
    assert reduced[0] == {rows, RANKS * rows}
