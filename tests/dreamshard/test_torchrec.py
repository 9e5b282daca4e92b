import pytest

pytest.importorskip("torchrec")

from torchrec.distributed.types import ShardingPlan

from dreamshard.plan import Plan, Shard
from dreamshard.torchrec import from_json, sharding_plan, to_json


def plan() -> Plan:
    return Plan(
        num_devices=3,
        placer="x",
        shards=(
            Shard(table="user", device=0, column_start=0, column_end=8),
            Shard(table="user", device=2, column_start=8, column_end=16),
            Shard(table="item", device=1, column_start=0, column_end=8),
        ),
    )


def test_whole_tables_become_table_wise_and_split_tables_column_wise():
    made = sharding_plan(plan(), {"user": 100, "item": 50}, module_path="ebc")
    parameters = made.plan["ebc"]
    assert parameters["item"].sharding_type == "table_wise"
    assert parameters["item"].ranks == [1]
    assert parameters["user"].sharding_type == "column_wise"
    assert parameters["user"].ranks == [0, 2]
    assert [shard.shard_offsets for shard in parameters["user"].sharding_spec.shards] == [[0, 0], [0, 8]]
    assert [shard.shard_sizes for shard in parameters["user"].sharding_spec.shards] == [[100, 8], [100, 8]]


def test_the_json_of_a_sharding_plan_loads_back_as_torchrecs_own_class():
    made = sharding_plan(plan(), {"user": 100, "item": 50}, module_path="ebc", device_type="cpu")
    read = from_json(to_json(made))
    assert isinstance(read, ShardingPlan)
    assert read.plan == made.plan


def test_text_that_is_no_sharding_plan_is_refused():
    with pytest.raises(ValueError, match="not a TorchRec sharding plan"):
        from_json('{"ebc": {"user": {"ranks": [0]}}}')
