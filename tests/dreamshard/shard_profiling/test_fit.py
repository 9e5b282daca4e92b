"""A placer learnt from shards alone, and the report on its shards."""

from dataclasses import replace

import pytest
import torch

from dreamshard.placement import Placement
from dreamshard.shard_profiling.bundled_placers import load_bundled, save_bundled
from dreamshard.shard_profiling.dataset import measurement_conditions, samples_of
from dreamshard.shard_profiling.design import DIMS
from dreamshard.shard_profiling.fit import (
    ShardTraining,
    learn_from_shards,
    link_exchanges,
    split_shards,
)
from dreamshard.shard_profiling.report import factor_rows, fusion_rows, summary
from dreamshard.task_sampling import sample_tasks
from dreamshard.testbeds.accelerators.specs import H200
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.training import make_placer
from tests.helpers.shards import CONFIG, meta_tables, simulated_shards

pytestmark = pytest.mark.slow  # learns a placer once, for most of these tests

QUICK = ShardTraining(stages=8, steps=250, policy_rounds=1, num_devices=4, tables_per_task=20)


@pytest.fixture(scope="module")
def shards():
    return simulated_shards(900)


@pytest.fixture(scope="module")
def learnt(shards):
    with torch.enable_grad():
        return learn_from_shards(shards, H200, QUICK)


def test_held_out_shards_are_predicted_within_5_percent_and_better_than_by_the_papers_network(learnt):
    overall = learnt.errors[-1]
    assert (overall.tables, overall.num_shards) == ("all", 180)
    assert overall.mape <= 0.05
    assert overall.mape < 0.5 * overall.paper_mape
    assert min(overall.torchrec_mape, overall.torchrec_scaled_mape) > overall.mape
    assert [error.tables for error in learnt.errors[:5]] == ["1", "2-4", "5-9", "10-19", "20-39"]
    assert sum(error.num_shards for error in learnt.errors[:-1]) == 180


@pytest.mark.parametrize(("num_tables", "num_devices"), [(40, 8), (400, 64)])
def test_communication_follows_the_links_of_any_number_of_devices(learnt, num_tables, num_devices):
    setup = TestbedSetup(num_devices=num_devices, batch_size=CONFIG.batch_size, lookups=lambda name: pytest.fail(name))
    bed = SimulatedTestbed(setup, H200, noise=0.0)
    generator = torch.Generator().manual_seed(1)
    (task,) = sample_tasks(
        meta_tables(), 1, num_tables, num_devices, 2**40, generator, precision="fp16", optimizer="rowwise_adagrad"
    )
    placement = Placement(torch.randint(num_devices, (num_tables,), generator=generator), num_devices)
    measured = bed.measure(task, placement).costs
    predicted = make_placer(learnt.state).predict(task, placement)
    torch.testing.assert_close(predicted.forward_comm_ms, measured.forward_comm_ms, rtol=0.05, atol=0)
    torch.testing.assert_close(predicted.backward_comm_ms, measured.backward_comm_ms, rtol=0.05, atol=0)


def test_measured_exchanges_replace_published_links_except_where_they_cross_no_hosts():
    published = link_exchanges(H200)
    within = [sample for sample in published if sample.exchange.num_devices <= H200.devices_per_node]
    added = {sample.exchange.num_devices for sample in link_exchanges(H200, within)}
    assert added == {16, 32, 64, 128}
    assert link_exchanges(H200, published) == []


def test_the_placer_beats_every_rule_of_thumb_on_the_accelerator_it_was_learnt_for(learnt):
    from dreamshard.baselines import baselines

    setup = TestbedSetup(num_devices=4, batch_size=CONFIG.batch_size, lookups=lambda name: pytest.fail(name))
    bed = SimulatedTestbed(setup, H200, noise=0.0)
    mixed = replace(meta_tables(), dim=torch.tensor(DIMS).repeat(72)[:856])
    tasks = sample_tasks(
        mixed, 5, 30, 4, 2**40, torch.Generator().manual_seed(2), precision="fp16", optimizer="rowwise_adagrad"
    )

    def mean_ms(placer) -> float:
        return sum(bed.measure(task, placer.place(task)).overall_ms for task in tasks) / len(tasks)

    assert mean_ms(make_placer(learnt.state)) < min(mean_ms(placer) for placer in baselines().values())


def test_a_placer_is_saved_only_under_the_name_of_what_was_measured(learnt, tmp_path):
    with pytest.raises(ValueError, match=r"no placer learnt from costs of h200.*profile --recipe h200_costs"):
        load_bundled("h200", [tmp_path])
    with pytest.raises(ValueError, match=r"measured on Intel Xeon, so a placer .* must not be called 'h200'"):
        save_bundled(tmp_path, "h200", make_placer(learnt.state), learnt.measurements | {"hardware": "Intel Xeon"})
    save_bundled(tmp_path, "h200", make_placer(learnt.state), learnt.measurements | {"hardware": "NVIDIA H200"})
    bundled = load_bundled("h200", [tmp_path])
    assert str(bundled) == (
        "learnt from 900 shards measured on NVIDIA H200, 2026-01-02, batch 65536, fp16, rowwise_adagrad (torch 2.13.0)"
    )
    assert bundled.measurements["heldout_error"][-1]["tables"] == "all"
    (task,) = sample_tasks(meta_tables(), 1, 20, 4, 2**40, torch.Generator().manual_seed(0))
    assert torch.equal(bundled.placer.place(task, 0.0).device, make_placer(learnt.state).place(task, 0.0).device)


def test_shards_measured_under_different_conditions_or_too_few_are_refused(shards):
    with pytest.raises(ValueError, match="measured under 2 conditions"):
        measurement_conditions([shards[0], replace(shards[1], hardware="another")])
    with pytest.raises(ValueError, match="9 measured shards are too few"):
        learn_from_shards(shards[:9], H200, QUICK)


def test_a_fifth_is_held_out_and_the_rest_is_fitted(shards):
    fitted, held_out = split_shards(samples_of(shards))
    assert (len(fitted), len(held_out)) == (720, 180)
    assert not {s.task.name for s in fitted} & {s.task.name for s in held_out}


def test_fusion_is_the_cost_of_a_shard_over_that_of_its_tables_alone(shards):
    fused = next(s for s in shards if any(other.alone_of == s.index for other in shards))
    alone = [s for s in shards if s.alone_of == fused.index]
    assert len(alone) == len(fused.tables) > 1
    rows = fusion_rows([fused, *alone])
    expected = fused.forward_ms / sum(s.forward_ms for s in alone)
    assert len(rows) == 1
    assert rows[0]["shards"] == 1
    assert rows[0]["fused forward / sum of singles"] == f"{expected:.2f}"
    assert fusion_rows([fused, *alone[1:]]) == []


def test_wide_tables_cost_less_per_weight_and_the_report_says_on_what_hardware(shards):
    per_weight = [float(row["forward ps per weight"]) for row in factor_rows(shards, "dim")]
    assert per_weight[0] > per_weight[-1]
    text = summary(shards)
    assert text.startswith("900 shards on simulated h200 (torch 2.13.0), batch 65536, fp16, rowwise_adagrad")
    assert text.count("\n| --- |") == 6
