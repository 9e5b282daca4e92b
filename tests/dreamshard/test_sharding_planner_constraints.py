"""Constraints of `DreamShardPlanner`: each field of TorchRec's and of our own is honoured or refused."""

import pytest
import torch

torchrec = pytest.importorskip("torchrec")

from torchrec.distributed.planner import ParameterConstraints  # noqa: E402
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType  # noqa: E402
from torchrec.distributed.types import CacheParams, KeyValueParams  # noqa: E402

from dreamshard.constraints import Constraints  # noqa: E402
from dreamshard.placement import Placement  # noqa: E402
from tests.helpers.planned_model import GIB, SHARDERS, Model, constrained, planner, topology  # noqa: E402


@pytest.mark.parametrize("way", ["table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel"])
def test_sharding_types_are_honoured(way):
    assert constrained(ParameterConstraints(sharding_types=[way])).sharding_types_of["a"] == (way,)


def test_a_grid_is_planned_only_where_it_is_named_as_by_torchrecs_planner():
    found = constrained(ParameterConstraints()).sharding_types_of
    assert "grid_shard" not in found["a"]
    named = constrained(ParameterConstraints(sharding_types=["grid_shard"])).sharding_types_of
    assert named["a"] == ("grid_shard",)


@pytest.mark.parametrize(
    ("kernels", "types", "cached"),
    [
        (["dense"], ("data_parallel",), "never"),
        (["fused"], ("table_wise", "column_wise", "row_wise", "table_row_wise"), "never"),
        (["fused_uvm_caching"], ("table_wise", "column_wise", "row_wise", "table_row_wise"), "must"),
        (["fused", "fused_uvm_caching"], ("table_wise", "column_wise", "row_wise", "table_row_wise"), "may"),
    ],
)
def test_compute_kernels_are_honoured(kernels, types, cached):
    found = constrained(ParameterConstraints(compute_kernels=kernels))
    assert found.sharding_types_of["a"] == types
    assert found.may_be_cached("a") == (cached != "never")
    assert found.cached_share_of == ({"a": 0.2} if cached == "must" else {})
    assert found.may_be_cached("b")


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        ({"num_poolings": [2.0]}, "num_poolings"),
        ({"batch_sizes": [512]}, "batch_sizes"),
        ({"pooling_factors": [1.0, 2.0]}, "pooling_factors"),
        ({"pooling_factors": [-1.0]}, "pooling_factors"),
        ({"feature_names": ["other"]}, "feature_names"),
        ({"device_group": "cpu"}, "device_group"),
        ({"key_value_params": KeyValueParams()}, "key_value_params"),
        ({"use_virtual_table": True}, "use_virtual_table"),
        ({"cache_params": CacheParams(load_factor=0.5)}, "cache_params"),
        ({"sharding_types": ["table_column_wise"]}, "sharding_types"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(refused, text):
    with pytest.raises(ValueError, match=text):
        planner(constraints={"a": ParameterConstraints(**refused)}).plan(Model(), SHARDERS)


class EverythingOnOne:
    """A placer that knows whole tables only and looks at no constraint."""

    name = "everything on one"

    def place(self, task, budget_ms=None):
        return Placement.whole(torch.full((len(task.tables),), 3), task.num_devices)


def test_any_placer_may_place_but_not_against_constraints():
    plan = planner(costs=EverythingOnOne()).plan(Model(), SHARDERS)
    assert {each.ranks[0] for each in plan.plan["ebc"].values()} == {3}
    elsewhere = Constraints(pinned={"a": (1,)})
    with pytest.raises(PlannerError, match="'a' has a shard on device 3, which it may not use"):
        planner(costs=EverythingOnOne(), placement_constraints=elsewhere).plan(Model(), SHARDERS)


def test_all_of_the_further_constraints_narrow_torchrecs():
    further = Constraints(
        sharding_types_of={"a": ("row_wise", "grid_shard")},
        cached_share_of={"c": 0.5},
        never_cached=frozenset({"d"}),
        narrowest_columns_of={"b": 8, "c": 32},
        reserve_bytes=7,
    )
    both = constrained(ParameterConstraints(min_partition=16), "b", own=further)
    assert both.sharding_types_of["a"] == ("row_wise", "grid_shard"), "a grid is for who names it"
    assert "column_wise" in both.sharding_types_of["b"]
    assert [both.may_be_cached(name) for name in "abcd"] == [True, True, True, False]
    assert both.cached_share_of == {"c": 0.5}
    assert both.narrowest_columns_of == {"b": 16, "c": 32}
    assert both.reserve_bytes == 7


def test_a_contradiction_is_no_shortage_of_memory():
    for further in (Constraints(pinned={"a": (9,)}), Constraints(pinned={"a": (1,)}, excluded_devices=(1,))):
        with pytest.raises(PlannerError, match="the constraints cannot be met") as raised:
            planner(placement_constraints=further).plan(Model(), SHARDERS)
        assert raised.value.error_type == PlannerErrorType.STRICT_CONSTRAINTS
    with pytest.raises(PlannerError) as raised:
        planner(topology=topology(memory=GIB)).plan(Model(rows=2**40), SHARDERS)
    assert raised.value.error_type == PlannerErrorType.INSUFFICIENT_STORAGE
