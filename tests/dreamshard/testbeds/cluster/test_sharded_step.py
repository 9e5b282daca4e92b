"""Every way to shard gives the pooled vectors and the weights after a step that no sharding gives."""

import pytest
import torch

from dreamshard.placement import SHARDING_TYPES, Placement, ShardingType, TableSharding, even_columns
from tests.helpers.sharded_ranks import Case, StepResult, run_steps

pytestmark = pytest.mark.processes

HOSTS = {"2 ranks": (2, 2), "4 ranks": (4, 4), "2 x 2 ranks": (4, 2)}
"""Devices and devices per host."""


def sharding(way: ShardingType, dim: int, places: int, first: int = 0) -> TableSharding:
    """A table of `dim` columns; those on one device or host begin with `first`."""
    parts = 2 if way in ("column_wise", "grid_shard") else 1
    where = tuple((first + part) % places for part in range(parts))
    nowhere = way in ("row_wise", "data_parallel")
    return TableSharding(way, even_columns(dim, parts) if parts > 1 else (), () if nowhere else where)


def placed(ways: list[ShardingType], dims: list[int], hosts: tuple[int, int]) -> Placement:
    devices, per_host = hosts
    tables = tuple(
        sharding(way, dim, devices // per_host if way in ("table_row_wise", "grid_shard") else devices, t)
        for t, (way, dim) in enumerate(zip(ways, dims, strict=True))
    )
    return Placement(tables, devices, per_host)


def of_one_way(way: ShardingType, on: str) -> Case:
    """Three tables, one of which has fewer rows than there are ranks; 9 samples make uneven shares."""
    dims = [8, 16, 8]
    return Case(f"{way} on {on}", placed([way] * 3, dims, HOSTS[on]), (50, 33, 3), tuple(dims), batch_size=9)


def of_all_ways(name: str, on: str, **options) -> Case:
    dims = [8, 16, 8, 24, 16, 4, 4]
    placement = placed([*SHARDING_TYPES, "data_parallel"], dims, HOSTS[on])
    return Case(f"{name} on {on}", placement, (50, 33, 40, 21, 60, 11, 5), tuple(dims), **options)


CASES = [
    *(of_one_way(way, on) for way in SHARDING_TYPES for on in HOSTS),
    *(of_all_ways("all ways", on) for on in HOSTS),
    of_all_ways("mixed precisions", "2 x 2 ranks", precision_of={"t0": "fp16", "t2": "fp16", "t4": "fp16"}),
    of_all_ways("adagrad", "2 x 2 ranks", optimizer="adagrad"),
    Case(
        "row-wise adagrad of rows on 4 ranks",
        placed(["row_wise", "table_row_wise", "data_parallel"], [8, 16, 4], HOSTS["4 ranks"]),
        (50, 33, 7),
        (8, 16, 4),
        optimizer="rowwise_adagrad",
    ),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, list[StepResult]]:
    return run_steps(CASES, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pooled_vectors_and_weights_are_those_without_sharding(results, case):
    pooled, after = case.expected()
    tolerance = {"rtol": 2e-3, "atol": 2e-3} if case.precision_of else {"rtol": 1e-5, "atol": 1e-6}
    held = [torch.zeros_like(weight, dtype=torch.bool) for weight in after]
    reached = 0
    for result in results[case.name]:
        start, end = result.samples
        assert start == reached
        reached = end
        for found, expected in zip(result.pooled, pooled, strict=True):
            torch.testing.assert_close(found, expected[start:end], **tolerance)
        for table, row, column, weight in result.weights:
            part = slice(row, row + weight.shape[0]), slice(column, column + weight.shape[1])
            torch.testing.assert_close(weight, after[table][part], **tolerance)
            held[table][part] = True
    assert reached == case.batch_size
    assert all(part.all() for part in held)


@pytest.mark.parametrize("on", HOSTS)
def test_data_parallel_tables_wait_only_for_gradients(results, on):
    for result in results[f"data_parallel on {on}"]:
        forward_ms, forward_comm_ms, backward_comm_ms, backward_ms, index_ms = result.milliseconds
        assert (forward_comm_ms, index_ms) == (0, 0)
        assert min(forward_ms, backward_comm_ms, backward_ms) > 0


@pytest.mark.parametrize("way", ["row_wise", "table_row_wise", "grid_shard"])
def test_row_blocks_take_time_in_every_phase(results, way):
    for result in results[f"{way} on 2 x 2 ranks"]:
        assert min(result.milliseconds) > 0
