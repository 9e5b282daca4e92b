from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from dreamshard.constraints import ANY_SHARDING
from dreamshard.tables import SHARDING_TYPES, Placement, ShardingType, TableSharding, even_columns
from dreamshard.tasks import PlacementTask, Shards
from dreamshard.testbeds import step
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.device import Device
from dreamshard.testbeds.step import EPSILON, LEARNING_RATE, RankOperator, RankOperators, Teams, collectives_of
from dreamshard.workloads import Lookups
from tests.helpers.tables import roomy_task, tables_of_dims

BATCH, RANKS, PER_HOST = 9, 4, 2  # uneven shares of samples
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
ROWS, DIMS = 33, [8, 16, 8, 24, 16, 4]
HALVES = {"precision_of": {"table-0": "fp16", "table-2": "fp16"}}


def lookups_of(name: str) -> Lookups:
    """Bags of 0 to 4 rows, drawn by the table's name."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    lengths = torch.randint(5, (BATCH,), generator=generator)
    indices = torch.randint(ROWS, (int(lengths.sum()),), generator=generator)
    return Lookups(indices, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]))


def sharding(kind: ShardingType, dim: int, first: int) -> TableSharding:
    places = RANKS // PER_HOST if kind in ("table_row_wise", "grid_shard") else RANKS
    parts = 2 if kind in ("column_wise", "grid_shard") else 1
    where = () if kind in ("row_wise", "data_parallel") else tuple((first + part) % places for part in range(parts))
    return TableSharding(kind, even_columns(dim, parts) if parts > 1 else (), where)


def placed(types: tuple[ShardingType, ...], poolings: float = 1, **options) -> tuple[PlacementTask, Shards]:
    tables = tables_of_dims(DIMS[: len(types)], rows=ROWS)
    tables = replace(tables, poolings=torch.full((len(types),), poolings, dtype=torch.float64))
    task = replace(roomy_task(tables, RANKS), constraints=ANY_SHARDING, **options)
    tables = tuple(sharding(sharding_type, DIMS[t], t) for t, sharding_type in enumerate(types))
    return task, Shards.of(task, Placement(tables, RANKS, PER_HOST))


def device_of(kind: str = "cpu") -> Device:
    return Device(TestbedSetup(num_devices=RANKS, batch_size=BATCH, lookups=lookups_of), torch.device(kind))


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
    ("types", "options"),
    [
        *(((sharding_type,) * 3, {}) for sharding_type in SHARDING_TYPES),
        *((SHARDING_TYPES, options) for options in ({}, HALVES, {"optimizer": "adagrad"}, {"poolings": 3})),
        (("row_wise", "table_row_wise", "data_parallel"), {"optimizer": "rowwise_adagrad"}),
    ],
)
@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, NEEDS_GPU])])
def test_pooled_vectors_and_weights_are_those_without_sharding(kind, types, options):
    task, shards = placed(types, **options)
    gradients = [values(BATCH, dim, seed=7) for dim in DIMS[: len(types)]]
    expected, after = without_sharding(task, gradients)
    outputs = [torch.zeros_like(tensor) for tensor in expected]
    held = [torch.full_like(tensor, torch.nan) for tensor in after]
    device = device_of(kind)
    denses = []
    for d in range(RANKS):
        operators, local = RankOperators(shards, device, d), shards.on(d)
        for operator in operators.operators:
            is_copy = bool(local.is_any("data_parallel")[operator.shards[0]])
            samples = slice([0, 3, 5, 7][d], [3, 5, 7, 9][d]) if is_copy else slice(None)
            places = [(int(local.table[s]), slice(*local.rows[s]), slice(*local.columns[s])) for s in operator.shards]
            weights = weights_of(operator, local)
            for (table, rows, columns), weight in zip(places, weights, strict=True):
                weight.copy_(values(ROWS, DIMS[table], seed=table)[rows, columns])
            pooled, given = operator.run(), []
            sent = local.tables.sent_dim[operator.shards].tolist()
            for (table, _, columns), part in zip(places, pooled.detach().cpu().split(sent, dim=1), strict=True):
                vectors = part.unflatten(1, (options.get("poolings", 1), -1))  # all of one table get the same gradient
                outputs[table][samples, columns] += vectors.sum(dim=1)
                given += [gradients[table][samples, columns]] * vectors.shape[1]
            pooled.backward(torch.cat(given, dim=1).to(kind))
            if is_copy:
                denses.append((operators.dense, places, weights))
            else:
                hold(held, places, weights)
    total = sum(dense.gradient.clone() for dense, *_ in denses) if denses else None
    for dense, places, weights in denses:
        dense.weights.grad = total.clone()
        dense.step()
        hold(held, places, weights)
    tolerance = {"rtol": 2e-3, "atol": 2e-3} if task.precision_of else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(outputs, expected, **tolerance)
    torch.testing.assert_close(held, after, **tolerance)


def test_a_sequence_has_a_vector_of_every_lookup():
    _, shards = placed(("table_wise", "table_wise", "column_wise"), poolings=0)
    for d in range(RANKS):
        for operator in RankOperators(shards, device_of(), d).operators:
            local = shards.on(d).tables
            lookups = sum(len(lookups_of(local.names[s].partition("[")[0]).indices) for s in operator.shards)
            assert {(lookups, int(dim)) for dim in local.dim[operator.shards]} == {tuple(operator.run().shape)}


def weights_of(operator: RankOperator, local: Shards) -> list[torch.Tensor]:
    """`[rows, dim]` of each of its shards."""
    if not local.is_any("data_parallel")[operator.shards[0]]:
        return operator.module.split_embedding_weights()
    rows, dim = local.tables.rows[operator.shards], local.tables.dim[operator.shards]
    parts = operator.module.weights.detach().split((rows * dim).tolist())
    return [part.reshape(-1, int(width)) for part, width in zip(parts, dim, strict=True)]


def hold(held: list[torch.Tensor], places: list[tuple[int, slice, slice]], weights: list[torch.Tensor]) -> None:
    for (table, rows, columns), weight in zip(places, weights, strict=True):
        held[table][rows, columns] = weight.detach().float().cpu()


def test_each_rank_receives_what_others_send_and_back(monkeypatch):
    (_, once), (_, shards) = placed(SHARDING_TYPES), placed(SHARDING_TYPES, poolings=4)
    sizes: list = []

    def exchange(others, sent_by_us, received, sent, group):
        sizes.append((sent, received, len(sent_by_us), len(others)))

    monkeypatch.setattr(step.dist, "all_to_all_single", exchange)
    for name in ("reduce_scatter_single", "all_gather_single"):
        monkeypatch.setattr(step.dist, name, lambda *_, **__: None)
    for rank in range(RANKS):
        places = (rank, RANKS), (rank % PER_HOST, PER_HOST), (rank // PER_HOST, RANKS // PER_HOST)
        teams = Teams(*(dist.ProcessGroup(*place) for place in places))
        forward, backward = zip(*collectives_of(shards, teams, device_of()), strict=True)
        for work in (*forward, *backward):
            work()
    counts, dims = [3, 2, 2, 2], (4 * once.per_device(once.traffic)[:, 0]).tolist()
    there = sizes[::4]  # of each rank: all-to-all and the hosts' one, then back
    for a, (sent, received, sent_here, others) in enumerate(there):
        assert (sum(sent), sum(received)) == (sent_here, others)
        assert sent == [count * dims[a] for count in counts]
        assert [there[b][0][a] for b in range(RANKS)] == received
    assert [(received, sent) for sent, received, *_ in sizes[2::4]] == [size[:2] for size in there]
    across = [sizes[4 * rank + 1] for rank in range(RANKS)]
    assert all(across[a][0][b // 2] == across[b][1][a // 2] for a, b in ((0, 2), (1, 3), (2, 0), (3, 1)))
