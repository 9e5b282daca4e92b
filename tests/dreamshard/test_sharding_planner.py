"""`DreamShardPlanner` where TorchRec's planner was: memory, ranks, names of costs, and what goes wrong."""

import logging

import pytest
import torch

torchrec = pytest.importorskip("torchrec")

from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder  # noqa: E402
from torchrec.distributed.planner import ParameterConstraints  # noqa: E402
from torchrec.distributed.planner.planners import (  # noqa: E402
    validate_modules_inclusion_in_sharding_plan,
    validate_rank_assignment,
)
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation  # noqa: E402
from torchrec.distributed.planner.types import PlannerError  # noqa: E402
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward  # noqa: E402

from dreamshard import training  # noqa: E402
from dreamshard.named_placers import named_placer  # noqa: E402
from tests.helpers.planned_model import GIB, SHARDERS, Model, planner, topology  # noqa: E402
from tests.helpers.trained import learnt_placer  # noqa: E402


def test_every_table_of_every_module_gets_ranks_and_the_plan_is_repeatable():
    model, first = Model(), planner()
    plan = first.plan(model, SHARDERS)
    validate_modules_inclusion_in_sharding_plan(plan, model, SHARDERS)
    validate_rank_assignment(plan, first.topology)
    assert {path: set(parameters) for path, parameters in plan.plan.items()} == {"ebc": set("abcd"), "ec": {"s"}}
    assert planner().plan(Model(), SHARDERS).plan == plan.plan


def test_tables_are_kept_out_of_the_memory_that_is_reserved(caplog):
    caplog.set_level(logging.INFO)
    model = Model(rows=4 * 2**20)  # 1 GiB each
    tight = topology(memory=2 * GIB)
    only = {name: ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"]) for name in "abcd"}
    reserve = FixedPercentageStorageReservation(0.4)
    plan = planner(topology=tight, storage_reservation=reserve, constraints=only).plan(model, SHARDERS)
    assert sorted(plan.plan["ebc"][name].ranks[0] for name in "abcd") == [0, 1, 2, 3]
    assert "1.2 GiB of a device are for tables, beside what FixedPercentageStorageReservation reserves" in caplog.text
    with pytest.raises(PlannerError, match="smallest shard"):
        planner(topology=tight, storage_reservation=FixedPercentageStorageReservation(0.6), constraints=only).plan(
            model, SHARDERS
        )
    with pytest.raises(PlannerError, match="the 0 GiB of a device"):
        planner(topology=tight, storage_reservation=FixedPercentageStorageReservation(1.0)).plan(model, SHARDERS)


def test_the_optimizers_state_takes_memory():
    model = Model()
    apply_optimizer_in_backward(torch.optim.Adam, model.ebc.parameters(), {"lr": 0.1})
    found = planner().model(model, SHARDERS)
    assert planner().task(found, model, SHARDERS).optimizer == "adam"
    assert any("adam" in note for note in found.model_notes)
    fused = [EmbeddingBagCollectionSharder(fused_params={"optimizer": "exact_row_wise_adagrad"}), SHARDERS[1]]
    assert planner().model(Model(), fused).details[0].optimizer == "rowwise_adagrad"


def test_measured_lookups_replace_what_is_assumed():
    measured = planner().model(Model(), SHARDERS).tables.select([0])
    columns = measured.columns(torch.tensor([0])) | {"pooling_factor": torch.tensor([9.0], dtype=torch.float64)}
    measured = type(measured)(("a",), **columns)
    again = planner(tables=measured).model(Model(), SHARDERS)
    assert again.tables.pooling_factor.tolist() == [9.0, 1.0, 2.0, 1.0, 1.0]
    assert "how often b, c, d, s are looked up is not known" in again.lookup_notes[0]
    with pytest.raises(ValueError, match="1000000 in the statistics"):
        planner(tables=measured).model(Model(rows=7), SHARDERS)


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


def test_costs_are_named_as_hardware_or_a_folder(tmp_path):
    assert named_placer("h100").name == "prior"
    (tmp_path / "mine.yaml").write_text("base: a100\nmemory: 40 GB\n")
    assert named_placer(tmp_path / "mine.yaml").spec.memory_bytes == 40 * 10**9
    with pytest.raises(ValueError, match="holds no readable model"):
        named_placer(tmp_path)
    with pytest.raises(ValueError, match="there is no folder"):
        named_placer(tmp_path / "none")


def test_a_saved_placer_plans_with_every_constraint_of_a_gpu(tmp_path):
    training.save_placer(learnt_placer(), tmp_path / "placer")
    only = {"a": ParameterConstraints(sharding_types=["row_wise"])}
    plan = planner(costs=tmp_path / "placer", constraints=only).plan(Model(), SHARDERS)
    assert plan.plan["ebc"]["a"].sharding_type == "row_wise"
    assert {path: set(parameters) for path, parameters in plan.plan.items()} == {"ebc": set("abcd"), "ec": {"s"}}
