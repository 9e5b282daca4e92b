import logging
from contextlib import nullcontext

import pytest
import torch

pytest.importorskip("torchrec")

from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints, Topology, planners
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.storage_reservations import (
    FixedAbsoluteStorageReservation,
    FixedPercentageStorageReservation,
)
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType, Stats
from torchrec.distributed.types import CacheParams
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from dreamshard import training
from dreamshard.constraints import Constraints
from dreamshard.planning import load_placer
from dreamshard.tables import Placement
from dreamshard.torchrec.planner import DreamShardPlanner
from tests.helpers.meta_models import bag, bags, sequences
from tests.helpers.trained import learnt_placer

SHARDERS = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
GIB = 2**30


def make_model(rows: int = 1_000_000) -> torch.nn.Module:
    """Four pooled tables, one of which two features share, and a sequence."""
    features = {"a": ["a"], "b": ["b"], "c": ["c", "c2"], "d": ["d"]}
    ebc = bags(*(bag(name, rows, 64, keys) for name, keys in features.items()))
    over = torch.nn.Linear(64, 1, device="meta")
    return torch.nn.ModuleDict({"ebc": ebc, "ec": sequences("s", 1000, 8), "over": over})


def topology(memory: int = 40 * GIB):
    return Topology(world_size=4, local_world_size=2, compute_device="cuda", hbm_cap=memory)


def planner(costs="a100", **options) -> DreamShardPlanner:
    options = {"topology": topology(), "batch_size": 1024, **options}
    return DreamShardPlanner(costs=costs, **options)


def constrained(constraint: ParameterConstraints, table: str = "a", ours=None):
    """What a constraint, and dreamshard's own, mean for planning."""
    model = make_model()
    made = planner(constraints={table: constraint}, placement_constraints=ours or Constraints())
    return made.task(made.model(model, SHARDERS), model, SHARDERS).constraints


def test_every_table_gets_ranks_and_the_plan_is_repeatable():
    model, first = make_model(), planner()
    plan = first.plan(model, SHARDERS)
    planners.validate_modules_inclusion_in_sharding_plan(plan, model, SHARDERS)
    planners.validate_rank_assignment(plan, first.topology)
    assert {path: set(parameters) for path, parameters in plan.plan.items()} == {"ebc": set("abcd"), "ec": {"s"}}
    assert planner().plan(make_model(), SHARDERS).plan == plan.plan


def test_tables_are_kept_out_of_the_memory_that_is_reserved(caplog):
    caplog.set_level(logging.INFO)
    model = make_model(rows=4 * 2**20)  # 1 GiB each
    tight = topology(memory=2 * GIB)
    only = {name: ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"]) for name in "abcd"}
    reserve = FixedPercentageStorageReservation(0.4)
    plan = planner(topology=tight, storage_reservation=reserve, constraints=only).plan(model, SHARDERS)
    assert sorted(plan.plan["ebc"][name].ranks[0] for name in "abcd") == [0, 1, 2, 3]
    assert "rank 3: 1 GiB of weights, optimizer state, gradients and caches, " in caplog.text
    assert "0.8 GiB are reserved" in caplog.text
    absolute, further = FixedAbsoluteStorageReservation(GIB // 4), Constraints(reserve_bytes=GIB // 2)
    both = planner(topology=tight, storage_reservation=absolute, placement_constraints=further)
    both.plan(make_model(1000), SHARDERS)
    assert "0.75 GiB are reserved" in caplog.text, "as much as is applied"
    assert "Compute Kernels Embedding Weights" in caplog.text, "TorchRec's table"
    more = planner(topology=tight, storage_reservation=FixedPercentageStorageReservation(0.6), constraints=only)
    with pytest.raises(PlannerError):
        more.plan(model, SHARDERS)


def test_the_optimizers_state_takes_memory():
    model = make_model()
    apply_optimizer_in_backward(torch.optim.Adam, model.ebc.parameters(), {"lr": 0.1})
    read = planner().model(model, SHARDERS)
    assert planner().task(read, model, SHARDERS).optimizer == "adam"
    assert any("adam" in note for note in read.model_notes)
    fused = [EmbeddingBagCollectionSharder(fused_params={"optimizer": "exact_row_wise_adagrad"}), SHARDERS[1]]
    assert planner().model(make_model(), fused).details[0].optimizer == "rowwise_adagrad"


def test_measured_and_given_lookups_replace_what_is_assumed():
    measured = planner().model(make_model(), SHARDERS).tables.select([0])
    columns = measured.columns(torch.tensor([0])) | {"pooling_factor": torch.tensor([9.0], dtype=torch.float64)}
    measured = type(measured)(("a",), **columns)
    again = planner(tables=measured).model(make_model(), SHARDERS)
    assert again.tables.pooling_factor.tolist() == [9.0, 1.0, 2.0, 1.0, 1.0]
    assert "how often b, c, d, s are looked up is not known" in again.lookup_notes[0]
    with pytest.raises(ValueError):
        planner(tables=measured).model(make_model(rows=7), SHARDERS)
    given = ParameterConstraints(pooling_factors=[2.0, 5.0], num_poolings=[3.0, 1.0])
    tables = planner(constraints={"c": given}).model(make_model(), SHARDERS).tables
    assert tables.named(["c"]).pooling_factor.tolist() == [2.0 * 3 + 5.0 * 1], "over features and poolings"
    assert tables.named(["c"]).sent_dim.tolist() == [64 * (3 + 1)]
    assert tables.vectors.tolist() == [1.0, 1.0, 4.0, 1.0, 1.0]


def test_costs_are_named_as_hardware_or_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    training.save_placer(learnt_placer(), tmp_path / "placer")
    only = {"a": ParameterConstraints(sharding_types=["row_wise"])}
    plan = planner(costs=tmp_path / "placer", constraints=only).plan(make_model(), SHARDERS)
    assert plan.plan["ebc"]["a"].sharding_type == "row_wise"
    (tmp_path / "mine.yaml").write_text("base: a100\nmemory: 40 GB\n")
    assert load_placer(tmp_path / "mine.yaml").spec.memory_bytes == 40 * 10**9
    with pytest.raises(ValueError):
        load_placer(tmp_path)
    with pytest.raises(ValueError):
        load_placer(tmp_path / "none")


TYPES = ("table_wise", "column_wise", "row_wise", "table_row_wise")
CACHED = ["fused_uvm_caching"]


@pytest.mark.parametrize(
    ("kernels", "types", "cached"),
    [(["dense"], ("data_parallel",), "never"), (CACHED, TYPES, "must"), (["fused", *CACHED], TYPES, "may")],
)
def test_compute_kernels_are_honoured(kernels, types, cached):
    made = constrained(ParameterConstraints(compute_kernels=kernels))
    assert made.sharding_types_of["a"] == types
    assert made.may_be_cached("a") == (cached != "never")
    assert made.cached_share_of == {"must": {"a": 0.2}, "never": {"a": 0.0}, "may": {}}[cached]
    assert made.may_be_cached("b")


@pytest.mark.parametrize(
    "refused",
    [
        ParameterConstraints(num_poolings=[2.0, 1.0]),
        ParameterConstraints(batch_sizes=[512]),
        ParameterConstraints(pooling_factors=[1.0, 2.0]),
        ParameterConstraints(feature_names=["other"]),
        ParameterConstraints(device_group="cpu"),
        ParameterConstraints(cache_params=CacheParams(load_factor=0.5)),
        ParameterConstraints(sharding_types=["table_column_wise"]),
        type("OfNvidiasDynamicemb", (ParameterConstraints,), {"use_dynamicemb": True})(),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(refused):
    with pytest.raises(ValueError, match=r"'ebc\.a'"):
        planner(constraints={"a": refused}).plan(make_model(), SHARDERS)


def test_rows_are_spread_over_pods_that_tile_the_ranks():
    only = {"a": ParameterConstraints(sharding_types=["table_row_wise"])}
    for ranks in (8, 6):  # two on each host, two hosts in an NVLink domain, as on GB200 (torchrec 3998, 4768)
        where = Topology(ranks, "cuda", hbm_cap=40 * GIB, local_world_size=2, pod_size=2)
        with pytest.raises(PlannerError, match="'a'") if ranks == 6 else nullcontext():
            rows = planner(topology=where, constraints=only).plan(make_model(), SHARDERS).plan["ebc"]["a"]
            placements = [str(shard.placement) for shard in rows.sharding_spec.shards]
            assert placements == [
                f"rank:{rank}/cuda:{rank % 2}" for rank in range(rows.ranks[0] // 4 * 4, rows.ranks[0] + 4)
            ]


@pytest.mark.parametrize("features", [1, 2, 5])
def test_samples_that_fbgemm_cannot_number_are_a_warning(features, caplog):
    most = torch.ops.fbgemm.get_infos_metadata(torch.empty(0), 1, features)[1]
    for samples in (most, most + 1):
        made = planner(topology=Topology(1, "cuda", hbm_cap=2**60), batch_size=samples)
        made.plan(bags(bag("a", dim=4, features=list("abcde")[:features])), SHARDERS)
        assert (f"lack bits for {samples} samples" in caplog.text) == (samples > most)


class EverythingOnOne:
    """A placer that knows whole tables only and looks at no constraint."""

    name = "everything on one"

    def place(self, task, budget_ms=None):
        return Placement.whole(torch.full((len(task.tables),), 3), task.num_devices)


def test_any_placer_may_place():
    plan = planner(costs=EverythingOnOne()).plan(make_model(), SHARDERS)
    assert {sharding.ranks[0] for sharding in plan.plan["ebc"].values()} == {3}


def test_all_of_the_further_constraints_narrow_torchrecs():
    grids, caches = {"a": ("row_wise", "grid_shard")}, {"c": 0.5, "d": 0.0}
    further = Constraints(sharding_types_of=grids, cached_share_of=caches, narrowest_columns_of={"b": 8, "c": 32})
    both = constrained(ParameterConstraints(min_partition=16), "b", ours=further)
    assert both.sharding_types_of["a"] == ("row_wise", "grid_shard"), "a grid is for who names it"
    assert "column_wise" in both.sharding_types_of["b"]
    assert [both.may_be_cached(name) for name in "abcd"] == [True, True, True, False]
    assert both.cached_share_of == {"c": 0.5, "d": 0.0}
    assert both.narrowest_columns_of == {"b": 16, "c": 32}
    explicit = constrained(ParameterConstraints(), ours=Constraints(sharding_types=TYPES[:2], caching=False))
    assert (explicit.sharding_types_of["a"], explicit.may_be_cached("a")) == (TYPES[:2], False), "not widened"
    assert constrained(ParameterConstraints(), ours=Constraints(pinned={"b": (1,)})).may_be_cached("a")


def test_cached_tables_ask_for_the_prefetching_pipeline(caplog):
    cached = {"a": ParameterConstraints(compute_kernels=CACHED)}
    for pipeline, warnings in (("prefetch", 0), ("sparse_dist", 1)):
        planner(constraints=cached, pipeline=pipeline).plan(make_model(), SHARDERS)
        assert caplog.text.count("PrefetchTrainPipelineSparseDist") == warnings


def test_costs_of_something_else_are_a_warning_or_refused(caplog, monkeypatch):
    made, model = planner(costs=learnt_placer()), make_model()
    plan = made.plan(model, SHARDERS)
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("another number of devices" in text and "batch size" in text for text in warned)
    assert any("how often a, b, c, d, s are looked up is not known" in text for text in warned)
    with pytest.raises(ValueError):
        planner(costs=learnt_placer(), strict=True).plan(model, SHARDERS)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    champion = planner(costs="champion")
    champion.placer = learnt_placer()
    by_h100 = planner(costs="h100").plan(model, SHARDERS)
    assert champion.plan(model, SHARDERS).plan == by_h100.plan
    assert any("h100's published figures place" in text for text in caplog.messages)
    assert planner(costs=learnt_placer()).plan(model, SHARDERS).plan == plan.plan, "only a champion is replaced"


def test_a_timeout_ends_planning_and_changes_nothing_before():
    model = make_model()
    plans = [planner(timeout_seconds=seconds).plan(model, SHARDERS) for seconds in (None, 1e6, 1e-6)]
    assert plans[0].plan == plans[1].plan
    planners.validate_rank_assignment(plans[2], topology())


def test_a_contradiction_is_no_shortage_of_memory():
    on_1, tight = {"a": (1,)}, topology(GIB)
    limits = ({"pinned": {"a": (9,)}}, {"memory_bytes_of": {1: 0}}, {"sharding_types_of": {"a": ("grid_shard",)}})
    strict = [{"placement_constraints": Constraints(**{"pinned": on_1, **limit})} for limit in (*limits, {})]
    short = [{"topology": tight, "costs": costs} for costs in ("a100", learnt_placer(), EverythingOnOne())]
    strict[-1]["costs"] = EverythingOnOne()
    for kind, rows, cases in (("STRICT_CONSTRAINTS", 1000, strict), ("INSUFFICIENT_STORAGE", 2**40, short)):
        for options in cases:
            with pytest.raises(PlannerError) as raised:
                planner(**options).plan(make_model(rows), SHARDERS)
            assert raised.value.error_type == PlannerErrorType[kind], options


def test_torchrecs_table_shows_costs_and_callbacks_change_plans():
    seen = []

    class Seen(Stats):
        def log(self, **given) -> None:
            seen.append(given)

    def on_third(options):
        options[-1].shards[0].rank = 2
        return options

    only = {name: ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"]) for name in "abcds"}
    made = planner(constraints=only, stats=[Seen()], callbacks=[on_third], timeout_seconds=0.1)
    plan = made.plan(make_model(), SHARDERS)
    assert plan.plan["ec"]["s"].ranks == [2]
    shards = [shard for option in seen[0]["best_plan"] for shard in option.shards]
    total = [sum(shard.perf.total for shard in shards if shard.rank == rank) for rank in range(4)]
    task = made.task(made.model(make_model(), SHARDERS), make_model(), SHARDERS)
    placement = Placement.whole([shard.rank for shard in shards], 4).on_hosts_of(2)
    assert total == pytest.approx(made.placer.predict(task, placement).device_ms().tolist(), rel=1e-3)


def test_torchrecs_own_planner_plans_by_our_costs():
    model, where = make_model(), topology()
    costs = planner(costs=learnt_placer()).estimator(model, SHARDERS)
    storage = EmbeddingStorageEstimator(where)
    options = EmbeddingEnumerator(where, 1024, estimator=[costs, storage])
    plan = planners.EmbeddingShardingPlanner(where, 1024, options).plan(model, SHARDERS)
    assert set(plan.plan["ebc"]) == set("abcd")
    kernels = {option.compute_kernel: option.total_perf for option in options.enumerate(model, SHARDERS)}
    assert 0 < kernels["fused"] < kernels["fused_uvm"] == float("inf")
