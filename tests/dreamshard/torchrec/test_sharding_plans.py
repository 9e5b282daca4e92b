import json
import warnings

import pytest
import torch

pytest.importorskip("torchrec")

from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.planners import to_sharding_plan
from torchrec.distributed.types import BoundsCheckMode, CacheParams, ShardingPlan
from torchrec.modules import hash_mc_modules, mc_embedding_modules, mc_modules

from dreamshard.constraints import ANY_SHARDING
from dreamshard.planning import make_plan
from dreamshard.tables import Placement, Tables, TableSharding
from dreamshard.tasks import PlacementTask
from dreamshard.torchrec import current_plan, load_plan, reshard_delta, sharding_options, tables_of
from tests.helpers.meta_models import META, bag, bags, sequences
from tests.helpers.tables import tables_of as of_sizes

ROWS, DIM = 37, 256  # rows that do not divide evenly
HALVES = ((0, DIM // 2), (DIM // 2, DIM))


def user(rows: int = ROWS, dim: int = DIM, name: str = "user"):
    return bags(bag(name, rows, dim))


def model(**options) -> torch.nn.Module:
    sparse = torch.nn.ModuleDict({"ebc": user(**options)})
    return torch.nn.ModuleDict({"sparse": sparse, "sequence": sequences("clicks", 10, 8)})


def plan_of(topology: Topology, module: torch.nn.Module, sharder, **tables) -> ShardingPlan:
    """TorchRec's own plan; `tables` are fields of their constraints."""
    constraints = {name: ParameterConstraints(**options) for name, options in tables.items()}
    planner = EmbeddingShardingPlanner(topology=topology, constraints=constraints, stats=[], debug=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return planner.plan(module, [sharder])


def theirs(sharding_type: str, kernel: str, device_type: str = "cuda", **options) -> ShardingPlan:
    """TorchRec's own plan of one table that may have only one sharding type, on two hosts of two ranks."""
    topology = Topology(world_size=4, local_world_size=2, compute_device=device_type)
    constraint = {"sharding_types": [sharding_type], "compute_kernels": [kernel], **options}
    return plan_of(topology, user(), EmbeddingBagCollectionSharder(), user=constraint)


def made_of(placement: Placement, module: torch.nn.Module, device_type: str = "cpu", constraints=None) -> ShardingPlan:
    topology = Topology(placement.num_devices, device_type, local_world_size=placement.devices_per_host)
    options = sharding_options(placement, tables_of(module).details, module, constraints)
    return to_sharding_plan(options, topology)


def ours(sharding: TableSharding, device_type: str = "cuda", **given) -> ShardingPlan:
    return made_of(Placement((sharding,), 4, 2), user(), device_type, {"user": ParameterConstraints(**given)})


def assert_same(ours: ShardingPlan, theirs: ShardingPlan) -> None:
    assert ours.plan.keys() == theirs.plan.keys()
    for path, parameters in theirs.plan.items():
        assert type(ours.plan[path]) is type(parameters)
        assert {name: vars(sharding) for name, sharding in ours.plan[path].items()} == {
            name: vars(sharding) for name, sharding in parameters.items()
        }


@pytest.mark.parametrize(
    ("sharding_type", "kernel", "columns", "ranks_per_place", "device_type"),
    [
        ("table_wise", "fused", (), 1, "cuda"),
        ("column_wise", "fused", HALVES, 1, "cuda"),
        ("row_wise", "fused", (), 0, "cuda"),
        ("table_row_wise", "fused", (), 2, "cuda"),
        ("grid_shard", "fused", HALVES, 2, "cuda"),
        ("data_parallel", "dense", (), 0, "cpu"),
    ],
)
def test_every_type_is_as_torchrecs_planner_makes_it(sharding_type, kernel, columns, ranks_per_place, device_type):
    expected = theirs(sharding_type, kernel, device_type, **({"min_partition": DIM // 2} if columns == HALVES else {}))
    where = ()
    if ranks_per_place:
        where = tuple(rank // ranks_per_place for rank in expected.plan[""]["user"].ranks[::ranks_per_place])
        where = where[: max(len(columns), 1)]
    assert_same(ours(TableSharding(sharding_type, columns=columns, where=where), device_type), expected)


def test_cached_tables_and_further_fields_equal_torchrecs_own():
    given = {"bounds_check_mode": BoundsCheckMode.WARNING, "stochastic_rounding": False, "enforce_hbm": True}
    cache = CacheParams(load_factor=0.25, reserved_memory=1.5)
    expected = theirs("row_wise", "fused_uvm_caching", cache_params=cache, **given)
    sharding = TableSharding("row_wise", cached_share=0.25)
    assert_same(ours(sharding, cache_params=CacheParams(reserved_memory=1.5), **given), expected)


def model_tables() -> Tables:
    return of_sizes([ROWS, 10], [DIM, 8], names=("user", "clicks"))


EVERY_TYPE = [
    TableSharding("table_wise", where=(3,)),
    TableSharding("column_wise", columns=HALVES, where=(3, 0)),
    TableSharding("row_wise"),
    TableSharding("row_wise", cached_share=0.5),
    TableSharding("table_row_wise", where=(1,)),
    TableSharding("grid_shard", columns=HALVES, where=(1, 0)),
    TableSharding("data_parallel"),
]


def saved(path, *shardings: TableSharding, ranks: int = 4, per_host: int = 2) -> Placement:
    """Write a plan of the model's tables."""
    placement = Placement(shardings, ranks, per_host)
    task = PlacementTask(model_tables(), ranks, 2**30, devices_per_host=per_host, constraints=ANY_SHARDING)
    path.write_text(make_plan(task, placement, "test").to_json())
    return placement


@pytest.mark.parametrize("sharding", EVERY_TYPE, ids=lambda option: option.sharding_type)
def test_a_plan_becomes_torchrecs_and_is_a_plan_again(sharding, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    placement = saved(tmp_path / "plan.json", sharding, TableSharding("row_wise"))
    made = made_of(placement, model(), "cuda")
    assert list(made.plan) == ["sparse.ebc", "sequence"]
    assert_same(load_plan(tmp_path / "plan.json", model(), device_type="cuda"), made)
    assert current_plan(made, model_tables(), devices_per_host=2).placement(model_tables()) == placement
    written = current_plan(json.dumps(made._serialize()), model_tables(), devices_per_host=2)
    assert written.tables.keys() == {"user", "clicks"}


def test_a_plan_has_real_columns_where_fbgemm_rounds_them_up():
    sharding = TableSharding("column_wise", columns=((0, 8), (8, 12)), where=(0, 1))
    made = made_of(Placement((sharding,), 2, 2), user(dim=10))
    assert [shard.shard_sizes for shard in made.plan[""]["user"].sharding_spec.shards] == [[ROWS, 8], [ROWS, 2]]
    assert current_plan(made).tables["user"].sharding == sharding


def test_a_bare_torchrec_plan_is_read_with_the_models_tables():
    bare = {
        "user": {"sharding_type": "column_wise", "compute_kernel": "fused", "ranks": [3, 1]},
        "clicks": {"sharding_type": "row_wise", "compute_kernel": "fused", "ranks": [0, 1, 2, 3]},
    }
    text = json.dumps({"ebc": bare})
    read = current_plan(text, model_tables()).placement(model_tables())
    assert read.tables == (TableSharding("column_wise", HALVES, (3, 1)), TableSharding("row_wise"))
    with pytest.raises(ValueError):
        current_plan(text)


def test_a_torchrec_plan_is_read_with_its_hosts_and_ranks():
    for sharding_type in ("table_row_wise", "row_wise"):
        assert current_plan(theirs(sharding_type, "fused")).devices_per_host == 2
    whole = ours(TableSharding("table_wise", where=(1,)))
    assert (current_plan(whole).num_devices, current_plan(whole, num_devices=4).num_devices) == (2, 4)


def test_a_gpu_of_another_number_than_its_rank_tells_the_size_of_hosts():
    made = made_of(Placement((TableSharding("table_wise", where=(8,)),), 16, 8), user(), "cuda")
    assert str(made.plan[""]["user"].sharding_spec.shards[0].placement) == "rank:8/cuda:0"
    assert current_plan(made, num_devices=16).devices_per_host == 8
    made.plan[""]["user"].sharding_spec.shards[0].placement = "rank:8/cuda:9"
    with pytest.raises(ValueError):
        current_plan(made)


@pytest.mark.parametrize("other", [{"dim": 128}, {"name": "guest"}])
def test_a_plan_for_other_tables_is_refused_and_says_which(tmp_path, other):
    saved(tmp_path / "plan.json", *[TableSharding("table_wise", where=(0,))] * 2)
    with pytest.raises(ValueError):
        load_plan(tmp_path / "plan.json", model(**other))


@pytest.fixture
def one_rank(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_a_plan_for_other_ranks_or_hosts_is_refused(tmp_path):
    path, on_first = tmp_path / "plan.json", TableSharding("table_wise", where=(0,))
    saved(path, on_first, on_first, ranks=1)
    (shard,) = load_plan(path, model()).plan["sequence"]["clicks"].sharding_spec.shards
    assert str(shard.placement) == "rank:0/cpu", "as gloo's ranks are, whatever the machine has"
    saved(path, on_first, on_first, ranks=2)
    with pytest.raises(ValueError):
        load_plan(path, model())


def test_two_modules_may_have_tables_of_one_name():
    pair = torch.nn.ModuleDict({path: bags(bag("t", 5, 8)) for path in ("a", "b")})
    made = made_of(Placement.whole([0, 1], 2), pair)
    assert {name: sharding.where for name, sharding in current_plan(made).tables.items()} == {"a.t": (0,), "b.t": (1,)}


def test_what_a_plan_cannot_hold_is_refused_by_name():
    uneven, nowhere = theirs("row_wise", "fused"), theirs("table_wise", "fused")
    uneven.plan[""]["user"].sharding_spec.shards.pop()
    nowhere.plan[""]["user"].ranks = None
    for refused in (theirs("table_wise", "fused_uvm"), theirs("data_parallel", "dense"), uneven, nowhere):
        with pytest.raises(ValueError, match="'user'"):
            current_plan(refused)


def test_rows_are_never_cut_within_a_bucket():
    config, thirds, quarters = bag("user", 96, 8), *(Placement((TableSharding("row_wise"),), n, n) for n in (3, 4))
    hashes = hash_mc_modules.HashZchManagedCollisionModule(96, META, total_num_buckets=6, max_probe=8)
    remaps = mc_modules.ManagedCollisionCollection({"user": hashes}, [config])  # torchrec 3341, 3452
    module = mc_embedding_modules.ManagedCollisionEmbeddingBagCollection(bags(config), remaps)
    sharder = ManagedCollisionEmbeddingBagCollectionSharder()
    assert_same(made_of(thirds, module, "cuda"), plan_of(Topology(3, "cuda"), module, sharder))
    for make in (lambda: made_of(quarters, module), lambda: plan_of(Topology(4, "cuda"), module, sharder)):
        with pytest.raises(ValueError, match=r"6 buckets.* 4 ranks"):
            make()


def test_only_what_torchrec_reshards_is_in_a_delta():
    first, second = (TableSharding("table_wise", where=(rank,)) for rank in (0, 1))
    delta = reshard_delta(ours(first), ours(second))
    assert {module: (size, dict(changed)) for module, (size, changed) in delta.items()} == {
        "": (ROWS * DIM * 4 / 2**20, dict(ours(second).plan[""]))
    }
    assert not reshard_delta(ours(first), ours(first))
    halves, thirds = (TableSharding("column_wise", ((0, n), (n, DIM)), (0, 1)) for n in (128, 64))
    copies = TableSharding("data_parallel")
    for old, new in ((halves, thirds), (first, halves), (copies, first), (first, copies)):
        with pytest.raises(ValueError):
            reshard_delta(ours(old), ours(new))


def test_sequence_tables_have_the_same_shards():
    topology = Topology(world_size=2, compute_device="cpu")
    constraint = {"sharding_types": ["row_wise"]}
    expected = plan_of(topology, model()["sequence"], EmbeddingCollectionSharder(), clicks=constraint)
    assert_same(made_of(Placement((TableSharding("row_wise"),), 2, 2), model()["sequence"]), expected)
    uneven = Placement((TableSharding("column_wise", ((0, 4), (4, 8)), (0, 1)),), 2, 2)
    with pytest.raises(ValueError):
        made_of(uneven, sequences("clicks", 10, 6))
