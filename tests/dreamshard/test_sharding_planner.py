"""`DreamShardPlanner` where TorchRec's planner was: every constraint, memory, and what goes wrong."""

import logging

import pytest
import torch

torchrec = pytest.importorskip("torchrec")

from torchrec.distributed.embedding import EmbeddingCollectionSharder  # noqa: E402
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder  # noqa: E402
from torchrec.distributed.planner import ParameterConstraints, Topology  # noqa: E402
from torchrec.distributed.planner.planners import (  # noqa: E402
    validate_modules_inclusion_in_sharding_plan,
    validate_rank_assignment,
)
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation  # noqa: E402
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType  # noqa: E402
from torchrec.distributed.types import BoundsCheckMode, CacheParams, KeyValueParams  # noqa: E402
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward  # noqa: E402
from torchrec.types import DataType  # noqa: E402

from dreamshard import model_files  # noqa: E402
from dreamshard.constraints import Constraints  # noqa: E402
from dreamshard.named_placers import named_placer  # noqa: E402
from dreamshard.placement import Placement  # noqa: E402
from dreamshard.sharding_planner import DreamShardPlanner  # noqa: E402
from dreamshard.torchrec.model_to_plan import model_to_plan  # noqa: E402
from tests.helpers.trained import learnt_placer  # noqa: E402

SHARDERS = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
GIB = 2**30


class Model(torch.nn.Module):
    """Four pooled tables, one of which two features share, and a sequence."""

    def __init__(self, rows: int = 1_000_000, dim: int = 64, data_type: DataType = DataType.FP32) -> None:
        super().__init__()
        config = torchrec.EmbeddingBagConfig
        features = {"a": ["a"], "b": ["b"], "c": ["c", "c2"], "d": ["d"]}
        self.ebc = torchrec.EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                config(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=keys, data_type=data_type)
                for name, keys in features.items()
            ],
        )
        sequence = torchrec.EmbeddingConfig(name="s", num_embeddings=1000, embedding_dim=8, feature_names=["s"])
        self.ec = torchrec.EmbeddingCollection(device=torch.device("meta"), tables=[sequence])
        self.over = torch.nn.Linear(64, 1, device="meta")


def topology(
    ranks: int = 4, *, per_host: int = 2, memory: int = 40 * GIB, device: str = "cuda", ddr: int | None = None
):
    return Topology(world_size=ranks, local_world_size=per_host, compute_device=device, hbm_cap=memory, ddr_cap=ddr)


def planner(costs="a100", **options) -> DreamShardPlanner:
    options = {"topology": topology(), "batch_size": 1024, **options}
    return DreamShardPlanner(costs=costs, **options)


def plan_with(constraint: ParameterConstraints | None = None, table: str = "a", model=None, **options):
    """The sharding of one table under a constraint."""
    constraints = {table: constraint} if constraint else {}
    plan = planner(constraints=constraints, **options).plan(model or Model(), SHARDERS)
    return next(parameters[table] for parameters in plan.plan.values() if table in parameters)


def inputs(constraint: ParameterConstraints, table: str = "a", model=None, device: str = "cuda"):
    """What a constraint means for planning."""
    return model_to_plan(
        model or Model(), SHARDERS, constraints={table: constraint}, compute_device=device, batch_size=1024
    ).inputs


def test_every_table_of_every_module_gets_ranks_and_the_plan_is_repeatable():
    model, first = Model(), planner()
    plan = first.plan(model, SHARDERS)
    validate_modules_inclusion_in_sharding_plan(plan, model, SHARDERS)
    validate_rank_assignment(plan, first.topology)
    assert {path: set(parameters) for path, parameters in plan.plan.items()} == {"ebc": set("abcd"), "ec": {"s"}}
    assert planner().plan(Model(), SHARDERS).plan == plan.plan


def test_a_model_without_tables_has_an_empty_plan():
    assert planner().plan(torch.nn.Linear(2, 2), SHARDERS).plan == {}


@pytest.mark.parametrize("way", ["table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel"])
def test_sharding_types_are_honoured(way):
    assert inputs(ParameterConstraints(sharding_types=[way])).constraints.sharding_types_of["a"] == (way,)


def test_a_table_of_one_allowed_type_is_sharded_so():
    assert plan_with(ParameterConstraints(sharding_types=["table_wise"])).sharding_type == "table_wise"


def test_a_grid_is_planned_only_where_it_is_named_as_by_torchrecs_planner():
    found = inputs(ParameterConstraints()).constraints.sharding_types_of
    assert "grid_shard" not in found["a"]
    named = inputs(ParameterConstraints(sharding_types=["grid_shard"])).constraints.sharding_types_of
    assert named["a"] == ("grid_shard",)


def test_what_a_sharder_does_not_offer_is_not_planned():
    on_cuda = inputs(ParameterConstraints(), "s").constraints.sharding_types_of["s"]
    assert set(on_cuda) == {"table_wise", "row_wise", "data_parallel"}
    on_cpu = inputs(ParameterConstraints(), device="cpu")
    assert "data_parallel" not in on_cpu.constraints.sharding_types_of["s"], "fbgemm would pool it"
    assert "row_wise" not in on_cpu.constraints.sharding_types_of["a"]
    assert not on_cpu.constraints.caching
    with pytest.raises(ValueError, match=r"'ec.s' cannot be sharded: .* \['table_row_wise'\]"):
        inputs(ParameterConstraints(sharding_types=["table_row_wise"]), "s")


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
    found = inputs(ParameterConstraints(compute_kernels=kernels)).constraints
    assert found.sharding_types_of["a"] == types
    assert found.may_be_cached("a") == (cached != "never")
    assert found.cached_share_of == ({"a": 0.2} if cached == "must" else {})
    assert found.may_be_cached("b")


@pytest.mark.parametrize("kernel", ["fused_uvm", "key_value", "quant", "customized_kernel"])
def test_kernels_that_are_not_planned_are_refused(kernel):
    with pytest.raises(ValueError, match=f"'ebc.a' cannot be sharded: .*'{kernel}'"):
        inputs(ParameterConstraints(compute_kernels=[kernel]))


def test_min_partition_is_the_narrowest_shard():
    assert inputs(ParameterConstraints(min_partition=32)).constraints.narrowest_columns_of == {"a": 32}


@pytest.mark.parametrize(("factors", "total"), [([3.0], 6.0), ([3.0, 4.0], 7.0)])
def test_pooling_factors_count_each_feature(factors, total):
    found = model_to_plan(
        Model(),
        SHARDERS,
        constraints={"c": ParameterConstraints(pooling_factors=factors)},
        compute_device="cuda",
        batch_size=1024,
    )
    assert found.inputs.pooling_factors == (1.0, 1.0, total, 1.0, 1.0)
    assert found.model.tables.pooling_factor.tolist() == [1.0, 1.0, total, 1.0, 1.0]


def test_further_fields_reach_the_plan():
    given = {"enforce_hbm": True, "stochastic_rounding": False, "bounds_check_mode": BoundsCheckMode.WARNING}
    made = plan_with(ParameterConstraints(**given, output_dtype=DataType.FP16, sharding_types=["table_wise"]))
    assert {name: getattr(made, name) for name in given} == given
    assert made.output_dtype == DataType.FP16


def test_what_costs_do_not_count_is_noted():
    assert "weights" in inputs(ParameterConstraints(is_weighted=True)).notes[0]
    assert "output_dtype" in inputs(ParameterConstraints(output_dtype=DataType.FP16)).notes[0]


def test_tables_of_several_features_are_noted():
    found = model_to_plan(Model(), SHARDERS, constraints={}, compute_device="cuda", batch_size=8)
    assert [note for note in found.notes if note.startswith("c have several features")]


def test_the_load_factor_of_a_table_that_must_be_cached_is_kept():
    cache = CacheParams(load_factor=0.3, reserved_memory=1.0)
    found = inputs(ParameterConstraints(compute_kernels=["fused_uvm_caching"], cache_params=cache))
    assert found.constraints.cached_share_of == {"a": 0.3}
    assert found.fields[0]["cache_params"] == cache


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        ({"num_poolings": [2.0]}, "num_poolings"),
        ({"batch_sizes": [512]}, "batch_sizes"),
        ({"pooling_factors": [1.0, 2.0]}, "pooling_factors"),
        ({"pooling_factors": [-1.0]}, "not negative"),
        ({"feature_names": ["other"]}, "feature_names"),
        ({"device_group": "cpu"}, "device_group"),
        ({"key_value_params": KeyValueParams()}, "key_value_params"),
        ({"use_virtual_table": True}, "use_virtual_table"),
        ({"cache_params": CacheParams(load_factor=0.5)}, "load factor of 0.5"),
        ({"sharding_types": ["table_column_wise"]}, "sharding_types"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(refused, text):
    with pytest.raises(ValueError, match=text):
        planner(constraints={"a": ParameterConstraints(**refused)}).plan(Model(), SHARDERS)


@pytest.mark.parametrize(
    "same",
    [{"num_poolings": [1.0]}, {"batch_sizes": [1024]}, {"feature_names": ["a"]}, {"device_group": "cuda"}],
)
def test_a_constraint_that_says_what_is_so_anyway_is_accepted(same):
    assert plan_with(ParameterConstraints(**same)) == plan_with()


def test_constraints_for_tables_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match=r"given for \['z'\]"):
        planner(constraints={"z": ParameterConstraints()}).plan(Model(), SHARDERS)


def test_tables_are_kept_out_of_the_memory_that_is_reserved(caplog):
    caplog.set_level(logging.INFO)
    model = Model(rows=4 * 2**20)  # 1 GiB each
    tight = topology(memory=2 * GIB)
    only = {name: ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"]) for name in "abcd"}
    reserve = FixedPercentageStorageReservation(0.4)
    plan = planner(topology=tight, storage_reservation=reserve, constraints=only).plan(model, SHARDERS)
    assert sorted(plan.plan["ebc"][name].ranks[0] for name in "abcd") == [0, 1, 2, 3]
    assert "reserved are 0.8 GiB by FixedPercentageStorageReservation" in caplog.text
    with pytest.raises(PlannerError, match="smallest shard"):
        planner(topology=tight, storage_reservation=FixedPercentageStorageReservation(0.6), constraints=only).plan(
            model, SHARDERS
        )
    with pytest.raises(PlannerError, match="left for tables"):
        planner(topology=tight, storage_reservation=FixedPercentageStorageReservation(1.0)).plan(model, SHARDERS)


def test_devices_may_have_unequal_memory():
    uneven = topology()
    for device in uneven.devices[1:]:
        device.storage.hbm = GIB // 8
    only = {name: ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"]) for name in "abcd"}
    plan = planner(topology=uneven, constraints=only).plan(Model(), SHARDERS)
    assert {plan.plan["ebc"][name].ranks[0] for name in "abcd"} == {0}


def test_the_optimizers_state_takes_memory():
    model = Model()
    apply_optimizer_in_backward(torch.optim.Adam, model.ebc.parameters(), {"lr": 0.1})
    found = model_to_plan(model, SHARDERS, constraints={}, compute_device="cuda", batch_size=8)
    task = found.task([GIB] * 4, batch_size=32, devices_per_host=2, further=Constraints())
    assert task.optimizer == "adam"
    assert "adam, sgd" in found.notes[-1]
    fused = [EmbeddingBagCollectionSharder(fused_params={"optimizer": "exact_row_wise_adagrad"}), SHARDERS[1]]
    found = model_to_plan(Model(), fused, constraints={}, compute_device="cuda", batch_size=8)
    assert found.model.details[0].optimizer == "rowwise_adagrad"


def test_types_of_weights_are_those_of_the_model():
    found = model_to_plan(Model(data_type=DataType.BF16), SHARDERS, constraints={}, compute_device="cuda", batch_size=8)
    task = found.task([GIB] * 4, batch_size=32, devices_per_host=2, further=Constraints())
    assert task.weight_bytes.tolist() == [2, 2, 2, 2, 4]


def test_measured_lookups_replace_what_is_assumed():
    found = model_to_plan(Model(), SHARDERS, constraints={}, compute_device="cuda", batch_size=8)
    measured = found.model.tables.select([0])
    columns = measured.columns(torch.tensor([0])) | {"pooling_factor": torch.tensor([9.0], dtype=torch.float64)}
    measured = type(measured)(("a",), **columns)
    again = model_to_plan(Model(), SHARDERS, constraints={}, compute_device="cuda", batch_size=8, measured=measured)
    assert again.model.tables.pooling_factor.tolist() == [9.0, 1.0, 2.0, 1.0, 1.0]
    assert "lack b, c, d, s" in again.notes[0]
    with pytest.raises(ValueError, match="1000000 in the statistics"):
        model_to_plan(Model(rows=7), SHARDERS, constraints={}, compute_device="cuda", batch_size=8, measured=measured)


def test_tables_of_one_name_in_two_modules_are_both_planned():
    class Twins(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x, self.y = Model().ebc, Model().ebc

    plan = planner().plan(Twins(), SHARDERS)
    assert {path: set(parameters) for path, parameters in plan.plan.items()} == {"x": set("abcd"), "y": set("abcd")}


def test_dims_that_the_fused_operator_refuses_are_copied_everywhere():
    found = inputs(ParameterConstraints(), model=Model(rows=100, dim=10)).constraints.sharding_types_of
    assert found["a"] == ("data_parallel",)
    assert len(found["s"]) > 1
    assert "a: it is copied to every rank" in inputs(ParameterConstraints(), model=Model(rows=100, dim=10)).notes[0]
    for named in ({"sharding_types": ["table_wise"]}, {"compute_kernels": ["fused"]}):
        with pytest.raises(ValueError, match=r"has 10 columns, which fbgemm's fused operator refuses.*widen it to 12"):
            inputs(ParameterConstraints(**named), model=Model(rows=100, dim=10))


class EverythingOnOne:
    """A placer that knows whole tables only and looks at no constraint."""

    name = "everything on one"

    def place(self, task):
        return Placement(torch.full((len(task.tables),), 3), task.num_devices)


def test_any_placer_may_place_but_not_against_constraints():
    plan = planner(costs=EverythingOnOne()).plan(Model(), SHARDERS)
    assert {each.ranks[0] for each in plan.plan["ebc"].values()} == {3}
    elsewhere = Constraints(pinned={"a": (1,)})
    with pytest.raises(PlannerError, match="'a' has a shard on device 3, which it may not use"):
        planner(costs=EverythingOnOne(), placement_constraints=elsewhere).plan(Model(), SHARDERS)


def test_tables_may_be_pinned():
    plan = planner(placement_constraints=Constraints(pinned={"a": (2,)})).plan(Model(), SHARDERS)
    assert plan.plan["ebc"]["a"].ranks == [2]


def test_all_of_the_further_constraints_narrow_torchrecs():
    found = model_to_plan(
        Model(),
        SHARDERS,
        constraints={"b": ParameterConstraints(min_partition=16)},
        compute_device="cuda",
        batch_size=8,
    )
    further = Constraints(
        sharding_types_of={"a": ("row_wise", "grid_shard")},
        cached_share_of={"c": 0.5},
        never_cached=frozenset({"d"}),
        narrowest_columns_of={"b": 8, "c": 32},
        reserve_bytes=7,
    )
    both = found.task([GIB] * 4, batch_size=32, devices_per_host=2, further=further).constraints
    assert both.sharding_types_of["a"] == ("row_wise",), "a grid is only for who names it to TorchRec"
    assert "column_wise" in both.sharding_types_of["b"]
    assert [both.may_be_cached(name) for name in "abcd"] == [True, True, True, False]
    assert both.cached_share_of == {"c": 0.5}
    assert both.narrowest_columns_of == {"b": 16, "c": 32}
    assert both.reserve_bytes == 7


@pytest.mark.parametrize(
    ("further", "text"),
    [
        (Constraints(pinned={"nope": (0,)}), "name nope, which are no tables of this model"),
        (
            Constraints(sharding_types_of={"s": ("table_row_wise",)}),
            "only table_row_wise, but .* no way to shard it is left",
        ),
        (Constraints(cached_share_of={"s": 0.5}), "cache s, but"),
    ],
)
def test_further_constraints_that_would_be_ignored_are_refused(further, text):
    only = {"s": ParameterConstraints(compute_kernels=["fused"])}
    with pytest.raises(ValueError, match=text):
        planner(constraints=only, placement_constraints=further).plan(Model(), SHARDERS)


def test_a_contradiction_is_no_shortage_of_memory():
    for further in (Constraints(pinned={"a": (9,)}), Constraints(pinned={"a": (1,)}, excluded_devices=(1,))):
        with pytest.raises(PlannerError, match="the constraints cannot be met") as raised:
            planner(placement_constraints=further).plan(Model(), SHARDERS)
        assert raised.value.error_type == PlannerErrorType.STRICT_CONSTRAINTS
    with pytest.raises(PlannerError) as raised:
        planner(topology=topology(memory=GIB)).plan(Model(rows=2**40), SHARDERS)
    assert raised.value.error_type == PlannerErrorType.INSUFFICIENT_STORAGE


def test_columns_that_make_a_large_table_unplannable_are_named():
    with pytest.raises(PlannerError, match=r"'a' has 10 columns, .* a copy needs .* widen it to 12 columns"):
        planner().plan(Model(rows=10**9, dim=10), SHARDERS)


def test_lookups_are_given_in_one_place_only():
    model = Model()
    measured = model_to_plan(model, SHARDERS, constraints={}, compute_device="cuda", batch_size=8).model.tables
    twice = {"a": ParameterConstraints(pooling_factors=[5.0])}
    with pytest.raises(ValueError, match=r"both the statistics .* pooling factors of a"):
        planner(constraints=twice, tables=measured).plan(model, SHARDERS)
    apart = planner(constraints=twice, tables=measured.select([1])).plan(model, SHARDERS)
    assert "a" in apart.plan["ebc"]
    columns = measured.columns(torch.tensor([0]))
    with pytest.raises(ValueError, match="also of other, which are no tables"):
        planner(tables=type(measured)(("other",), **columns)).plan(model, SHARDERS)


@pytest.fixture
def one_rank(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_a_topology_of_other_ranks_than_the_process_group_is_refused():
    with pytest.raises(ValueError, match="topology has 4 ranks, but the process group 1"):
        planner().collective_plan(Model(), SHARDERS)
    assert planner(topology=topology(1, per_host=1)).collective_plan(Model(), SHARDERS).plan.keys() == {"ebc", "ec"}


@pytest.mark.usefixtures("one_rank")
def test_a_plan_that_cannot_be_sent_is_an_error_on_all_ranks(monkeypatch):
    odd = {"a": ParameterConstraints(output_dtype=lambda: None)}
    assert planner(topology=topology(1, per_host=1), constraints=odd).collective_plan(Model(), SHARDERS).plan
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 2)
    sent = []
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", lambda outcome, **_: sent.extend(outcome))
    with pytest.raises(ValueError, match="cannot be sent to the other ranks"):
        planner(topology=topology(2), constraints=odd).collective_plan(Model(), SHARDERS)
    assert isinstance(sent[0], ValueError)


def test_costs_are_named_as_hardware_or_a_folder(tmp_path):
    assert named_placer("h100").name == "prior"
    (tmp_path / "mine.yaml").write_text("base: a100\nmemory: 40 GB\n")
    assert named_placer(tmp_path / "mine.yaml").spec.memory_bytes == 40 * 10**9
    with pytest.raises(ValueError, match="holds no readable model"):
        named_placer(tmp_path)
    with pytest.raises(ValueError, match="there is no folder"):
        named_placer(tmp_path / "none")


def test_a_name_of_nothing_lists_the_presets_and_makes_no_registry(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DREAMSHARD_HOME", raising=False)
    with pytest.raises(ValueError, match=r"'nonsense' is neither a preset \(a100.*champion"):
        named_placer("nonsense")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow  # imports MLflow
def test_costs_are_named_as_a_version_of_the_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ValueError, match="there is no champion yet"):
        named_placer("champion")


def test_a_registry_that_is_not_installed_is_said_to_be_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "storage.mlflow_store.registry", None)
    with pytest.raises(ValueError, match=r"neither a preset .* the registry of versions cannot be imported"):
        named_placer("champion")


def test_without_a_process_group_there_is_neither_topology_nor_collective():
    with pytest.raises(ValueError, match="no process group"):
        DreamShardPlanner(costs="a100")
    with pytest.raises(ValueError, match="no process group"):
        planner().collective_plan(Model(), SHARDERS)


def test_arguments_of_torchrecs_planner_that_do_not_apply_are_refused_by_name():
    with pytest.raises(TypeError, match="proposer"):
        planner(proposer=None)


def test_a_saved_placer_plans_with_every_constraint_of_a_gpu(tmp_path):
    model_files.save_placer(learnt_placer(), tmp_path / "placer")
    only = {"a": ParameterConstraints(sharding_types=["row_wise"])}
    plan = planner(costs=tmp_path / "placer", constraints=only).plan(Model(), SHARDERS)
    assert plan.plan["ebc"]["a"].sharding_type == "row_wise"
    assert {path: set(parameters) for path, parameters in plan.plan.items()} == {"ebc": set("abcd"), "ec": {"s"}}


@pytest.mark.parametrize("way", ["row_wise", "table_row_wise", "grid_shard", "data_parallel", "column_wise"])
def test_a_table_may_be_forced_into_each_way(way):
    assert plan_with(ParameterConstraints(sharding_types=[way])).sharding_type == way


def test_tables_are_cached_where_device_memory_is_short():
    tight = topology(memory=GIB)
    model = Model(rows=16 * 2**20)  # 4 GiB each, 16 GiB on 4 GiB
    plan = planner(topology=tight).plan(model, SHARDERS)
    cached = [each for each in plan.plan["ebc"].values() if each.compute_kernel == "fused_uvm_caching"]
    assert cached
    assert all(0 < each.cache_params.load_factor < 1 for each in cached)
    never = {name: ParameterConstraints(compute_kernels=["fused"]) for name in "abcd"}
    with pytest.raises(PlannerError):
        planner(topology=tight, constraints=never).plan(model, SHARDERS)
    poor = topology(memory=GIB, ddr=GIB // 4)
    with pytest.raises(PlannerError, match="more ddr_cap"):
        planner(topology=poor).plan(model, SHARDERS)
