"""Plans for TorchRec: field by field what its own planner makes of the same choice, and back again."""

import json
import warnings

import pytest
import torch

torchrec = pytest.importorskip("torchrec")

from torchrec.distributed.embedding import EmbeddingCollectionSharder  # noqa: E402
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder  # noqa: E402
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology  # noqa: E402
from torchrec.distributed.types import BoundsCheckMode, CacheParams, ShardingPlan  # noqa: E402

from dreamshard.placement import Placement, TableSharding  # noqa: E402
from dreamshard.tables import NUM_BINS, Tables  # noqa: E402
from dreamshard.torchrec import (  # noqa: E402
    current_plan,
    from_json,
    load_plan,
    sharding_plan,
    tables_of,
    to_json,
)
from dreamshard.workloads.model_tables import ModelTable  # noqa: E402

ROWS, DIM = 37, 256  # rows that do not divide evenly
WHOLE = ((0, DIM),)
HALVES = ((0, DIM // 2), (DIM // 2, DIM))


def bags(rows: int = ROWS, dim: int = DIM, name: str = "user") -> torchrec.EmbeddingBagCollection:
    config = torchrec.EmbeddingBagConfig(
        name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[f"{name}_id"]
    )
    return torchrec.EmbeddingBagCollection(device=torch.device("meta"), tables=[config])


class Model(torch.nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.sparse = torch.nn.ModuleDict({"ebc": bags(**options)})
        config = torchrec.EmbeddingConfig(name="clicks", num_embeddings=10, embedding_dim=8, feature_names=["c"])
        self.sequence = torchrec.EmbeddingCollection(device=torch.device("meta"), tables=[config])


def theirs(sharding_type: str, kernel: str, device_type: str = "cuda", **options) -> ShardingPlan:
    """TorchRec's own plan of one table that may only be sharded in one way, on two hosts of two ranks."""
    topology = Topology(world_size=4, local_world_size=2, compute_device=device_type)
    constraints = {"user": ParameterConstraints(sharding_types=[sharding_type], compute_kernels=[kernel], **options)}
    planner = EmbeddingShardingPlanner(topology=topology, constraints=constraints, stats=[], debug=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return planner.plan(bags(), [EmbeddingBagCollectionSharder()])


def ours(sharding: TableSharding, device_type: str = "cuda", fields=None) -> ShardingPlan:
    placement = Placement((sharding,), 4, 2)
    return sharding_plan(placement, tables_of(bags()).details, device_type=device_type, fields=[fields or {}])


def assert_same(ours: ShardingPlan, theirs: ShardingPlan) -> None:
    assert ours.plan.keys() == theirs.plan.keys()
    for path, parameters in theirs.plan.items():
        assert type(ours.plan[path]) is type(parameters)
        assert {name: vars(each) for name, each in ours.plan[path].items()} == {
            name: vars(each) for name, each in parameters.items()
        }


@pytest.mark.parametrize(
    ("way", "kernel", "columns", "ranks_per_place", "device_type"),
    [
        ("table_wise", "fused", (), 1, "cuda"),
        ("table_wise", "fused", (), 1, "cpu"),
        ("column_wise", "fused", HALVES, 1, "cuda"),
        ("row_wise", "fused", (), 0, "cuda"),
        ("table_row_wise", "fused", (), 2, "cuda"),
        ("grid_shard", "fused", HALVES, 2, "cuda"),
        ("data_parallel", "dense", (), 0, "cuda"),
        ("data_parallel", "dense", (), 0, "cpu"),
    ],
)
def test_every_way_to_shard_is_as_torchrecs_planner_makes_it(way, kernel, columns, ranks_per_place, device_type):
    expected = theirs(way, kernel, device_type, **({"min_partition": DIM // 2} if columns == HALVES else {}))
    where = ()
    if ranks_per_place:
        where = tuple(rank // ranks_per_place for rank in expected.plan[""]["user"].ranks[::ranks_per_place])
        where = where[: max(len(columns), 1)]
    assert_same(ours(TableSharding(way, columns=columns, where=where), device_type), expected)


def test_a_cached_table_and_further_fields_are_as_torchrecs_planner_makes_them():
    given = {"bounds_check_mode": BoundsCheckMode.WARNING, "stochastic_rounding": False, "enforce_hbm": True}
    cache = CacheParams(load_factor=0.25, reserved_memory=1.5)
    expected = theirs("row_wise", "fused_uvm_caching", cache_params=cache, **given)
    sharding = TableSharding("row_wise", cached_share=0.25)
    assert_same(ours(sharding, fields={**given, "cache_params": CacheParams(reserved_memory=1.5)}), expected)


def model_tables() -> Tables:
    return Tables(
        ("user", "clicks"),
        rows=torch.tensor([ROWS, 10]),
        dim=torch.tensor([DIM, 8]),
        pooling_factor=torch.zeros(2),
        bins=torch.zeros(2, NUM_BINS),
        lookups=torch.zeros(2, dtype=torch.int64),
        unique_rows=torch.zeros(2, dtype=torch.int64),
    )


EVERY_WAY = [
    TableSharding("table_wise", where=(3,)),
    TableSharding("column_wise", columns=HALVES, where=(3, 0)),
    TableSharding("row_wise"),
    TableSharding("row_wise", cached_share=0.5),
    TableSharding("table_row_wise", where=(1,)),
    TableSharding("grid_shard", columns=HALVES, where=(1, 0)),
    TableSharding("data_parallel"),
]


@pytest.mark.parametrize("sharding", EVERY_WAY, ids=lambda each: each.sharding_type)
def test_a_plan_becomes_torchrecs_and_is_a_plan_again(sharding, tmp_path):
    clicks = TableSharding("row_wise")
    placement = Placement((sharding, clicks), 4, 2)
    planned = tables_of(Model()).details
    assert [table.path for table in planned] == ["sparse.ebc.user", "sequence.clicks"]
    made = sharding_plan(placement, planned, device_type="cuda")
    text = to_json(made, planned, world_size=4, ranks_per_host=2, device_type="cuda")
    assert_same(from_json(text), made)
    assert current_plan(text).placement(model_tables()) == placement
    assert current_plan(made, model_tables(), devices_per_host=2).placement(model_tables()) == placement
    assert current_plan(json.dumps(made._serialize()), planned).by_table().keys() == {"user", "clicks"}
    (tmp_path / "plan.json").write_text(text)
    assert_same(load_plan(tmp_path / "plan.json", Model()), made)


def test_the_plan_has_a_tables_real_columns_where_fbgemm_rounds_them_up():
    sharding = TableSharding("column_wise", columns=((0, 8), (8, 12)), where=(0, 1))
    made = sharding_plan(Placement((sharding,), 2, 2), tables_of(bags(dim=10)).details, device_type="cpu")
    assert [shard.shard_sizes for shard in made.plan[""]["user"].sharding_spec.shards] == [[ROWS, 8], [ROWS, 2]]
    back = current_plan(made)
    assert [(shard.column_start, shard.column_end) for shard in back.shards] == [(0, 8), (8, 12)]


def test_a_plan_of_ways_kernels_and_ranks_only_is_read_with_the_models_tables():
    own = {
        "user": {"sharding_type": "column_wise", "compute_kernel": "fused", "ranks": [3, 1]},
        "clicks": {"sharding_type": "row_wise", "compute_kernel": "fused", "ranks": [0, 1, 2, 3]},
    }
    text = json.dumps({"ebc": own})
    found = current_plan(text, model_tables()).placement(model_tables())
    assert found.tables == (TableSharding("column_wise", HALVES, (3, 1)), TableSharding("row_wise"))
    with pytest.raises(ValueError, match="how many rows and columns table 'user' has"):
        current_plan(text)
    with pytest.raises(ValueError, match="has no sharding_spec"):
        from_json(text)


def test_a_plan_of_torchrecs_planner_is_read_with_its_hosts():
    for way in ("table_row_wise", "row_wise"):
        assert current_plan(theirs(way, "fused")).devices_per_host == 2


def saved(path, model=None) -> None:
    planned = tables_of(model or Model()).details
    shardings = tuple(TableSharding("table_wise", where=(0,)) for table in planned)
    made = sharding_plan(Placement(shardings, 2, 2), planned, device_type="cpu")
    path.write_text(to_json(made, planned, world_size=2, ranks_per_host=2, device_type="cpu"))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"rows": 38}, "'sparse.ebc.user' is 37 x 256 FP32 in the plan and 38 x 256 FP32 in the model"),
        ({"dim": 128}, "37 x 256 FP32 in the plan and 37 x 128 FP32"),
        ({"name": "guest"}, "'sparse.ebc.guest' is only in the model, 'sparse.ebc.user' is only in the plan"),
    ],
)
def test_a_plan_for_other_tables_is_refused_and_says_which(tmp_path, other, text):
    saved(tmp_path / "plan.json")
    with pytest.raises(ValueError, match=text):
        load_plan(tmp_path / "plan.json", Model(**other))


@pytest.fixture
def one_rank(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("about", "text"),
    [
        ({"world_size": 2}, "for 2 ranks, but 1 are running"),
        ({"device_type": "cuda"}, "for cuda ranks, but these are cpu"),
        (
            {"sharding_type": "table_row_wise", "ranks_per_host": 4},
            "hosts of 4 ranks, but TorchRec takes these to have 1",
        ),
    ],
)
def test_a_plan_for_other_ranks_hosts_or_devices_is_refused(tmp_path, monkeypatch, about, text):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    saved(tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text()) | {"world_size": 1, "ranks_per_host": 1}
    way = about.pop("sharding_type", "table_wise")
    content["plan"]["sequence"]["clicks"]["sharding_type"] = way
    (tmp_path / "plan.json").write_text(json.dumps(content))
    load_plan(tmp_path / "plan.json", Model())
    (tmp_path / "plan.json").write_text(json.dumps(content | about))
    with pytest.raises(ValueError, match=text):
        load_plan(tmp_path / "plan.json", Model())


def test_a_plan_whose_shards_do_not_cover_a_table_is_refused(tmp_path):
    saved(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    content = json.loads(text)
    shard = content["plan"]["sparse.ebc"]["user"]["sharding_spec"][0]
    key = next(name for name, value in shard.items() if value == [ROWS, DIM])
    shard[key] = [ROWS - 1, DIM]
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=f"'user' that hold {(ROWS - 1) * DIM} weights, but the table is {ROWS} x {DIM}"
    ):
        load_plan(tmp_path / "plan.json", Model())


@pytest.mark.parametrize("text", ['{"ebc": {"user": {"ranks": [0]}}}', "[1]", "{", '{"plan": {"": {"user": {}}}}'])
def test_text_that_is_no_sharding_plan_is_refused(text):
    with pytest.raises(ValueError, match="not a TorchRec sharding plan"):
        from_json(text)


def test_two_modules_may_have_tables_of_one_name():
    pair = [ModelTable(module_path=path, name="t", rows=5, dim=8, features=("f",)) for path in ("a", "b")]
    where = tuple(TableSharding("table_wise", where=(rank,)) for rank in (0, 1))
    made = sharding_plan(Placement(where, 2, 2), pair, device_type="cpu")
    assert [(shard.table, shard.device) for shard in current_plan(made).shards] == [("a.t", 0), ("b.t", 1)]
    with pytest.raises(ValueError, match="two tables 't'"):
        sharding_plan(Placement(where, 2, 2), pair[:1] * 2, device_type="cpu")


def test_what_a_plan_cannot_hold_is_refused():
    kernel = theirs("table_wise", "fused_uvm")
    with pytest.raises(ValueError, match="table 'user' of the plan is sharded by table_wise with kernel fused_uvm"):
        current_plan(kernel)
    with pytest.raises(ValueError, match="how many rows and columns table 'user' has"):
        current_plan(theirs("data_parallel", "dense"))


def test_sequence_tables_have_the_same_shards():
    collection = Model().sequence
    topology = Topology(world_size=2, compute_device="cpu")
    constraints = {"clicks": ParameterConstraints(sharding_types=["row_wise"])}
    planner = EmbeddingShardingPlanner(topology=topology, constraints=constraints, stats=[], debug=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = planner.plan(collection, [EmbeddingCollectionSharder()])
    sharding = TableSharding("row_wise")
    made = sharding_plan(Placement((sharding,), 2, 2), tables_of(collection).details, device_type="cpu")
    assert_same(made, expected)
