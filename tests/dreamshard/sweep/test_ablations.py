"""Ablations: what is left out has no influence, and measured costs are counted."""

from copy import copy
from dataclasses import replace
from importlib import import_module

import pytest
import torch

from dreamshard import training
from dreamshard.algorithms import TrainingConfig, with_algorithm
from dreamshard.cost_model import FEATURES
from dreamshard.placement import Placement
from dreamshard.sweep import Size, page, real_mdp
from dreamshard.sweep.ablations import ABLATIONS, FEATURE_GROUPS, without_costs
from dreamshard.sweep.bench import Bench
from dreamshard.sweep.systems import SYSTEMS
from dreamshard.sweep.tables import BATCH, draw_tasks, pool_of
from dreamshard.testbeds.accelerators.specs import V100
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from tests.helpers.sweep import cell_result

TABLES, DEVICES = 8, 2
ROUNDS, UPDATES, EPISODES = 2, 2, 3
TASK = draw_tasks("mixed", "validation", Size(TABLES, DEVICES), 1, 200)[0]
HALVES = Placement(torch.arange(TABLES) % DEVICES, DEVICES)
TABLES_OF = TASK.tables
CHANGED = {
    "dim": replace(TABLES_OF, dim=2 * TABLES_OF.dim),
    "rows": replace(TABLES_OF, rows=TABLES_OF.rows // torch.arange(1, TABLES + 1) + 1),
    "pooling_factor": replace(TABLES_OF, pooling_factor=TABLES_OF.pooling_factor * torch.arange(1, TABLES + 1)),
    "distribution": replace(TABLES_OF, bins=TABLES_OF.bins.flip(1), unique_rows=TABLES_OF.unique_rows // 3 + 1),
}


class FewSteps(Bench):
    """A bench whose trainings take a second."""

    def config(self, algorithm):
        config = TrainingConfig(
            iterations=ROUNDS, placements_per_iteration=1, cost_steps=5, policy_updates=UPDATES, episodes=EPISODES
        )
        return with_algorithm(config, algorithm)


def simulated(noise: float) -> SimulatedTestbed:
    def no_lookups(name):
        raise AssertionError(name)

    return SimulatedTestbed(
        TestbedSetup(num_devices=DEVICES, batch_size=BATCH, lookups=no_lookups, seed=0), V100, noise
    )


@pytest.fixture(scope="module")
def bench() -> Bench:
    return FewSteps(
        builders=SYSTEMS,
        testbed=simulated(noise=0.01),
        pool=pool_of("mixed", "train"),
        tasks=draw_tasks("mixed", "train", Size(TABLES, DEVICES), 2, 5),
        measurements=ROUNDS,
        most_devices=DEVICES,
        batch_size=BATCH,
        seed=0,
    )


def test_every_variant_learns_and_places(bench):
    for name in ABLATIONS:
        system = bench.system(name)
        assert TASK.is_legal(system.placer.place(TASK)), name
        assert system.learning_s > 0
        assert (system.measurements == ROUNDS) != name.endswith("real_mdp"), name


@pytest.mark.parametrize("group", CHANGED)
@pytest.mark.parametrize("system", ["paper", "dreamshard"])
def test_a_removed_feature_changes_no_prediction_and_nothing_that_the_policy_sees(bench, system, group):
    other = replace(TASK, tables=CHANGED[group])
    complete, without = bench.system(system).placer, bench.system(f"{system}_without_{group}").placer
    assert complete.predict_overall_ms(other, HALVES) != complete.predict_overall_ms(TASK, HALVES)
    assert without.predict_overall_ms(other, HALVES) == without.predict_overall_ms(TASK, HALVES)
    assert torch.equal(without.normaliser(other.tables), without.normaliser(TASK.tables))


@pytest.mark.parametrize("system", ["paper", "dreamshard"])
def test_without_size_only_that_column_is_gone(bench, system):
    column = FEATURES.index("size")
    complete, without = (
        bench.system(name).placer.normaliser(TASK.tables) for name in (system, f"{system}_without_size")
    )
    assert complete[:, column].unique().numel() > 1
    assert not without[:, column].any()
    complete[:, column] = 0
    assert torch.equal(complete, without)


def test_the_groups_are_all_features():
    assert {name for group in FEATURE_GROUPS.values() for name in group} == set(FEATURES)


@pytest.mark.parametrize("name", ["paper_without_costs", "dreamshard_without_costs"])
def test_without_costs_the_trained_policy_ignores_those_of_devices_and_still_learns(bench, name):
    complete, without = (bench.system(each).placer.policy for each in (name.split("_")[0], name))
    latents = complete.encode(torch.randn(5, len(FEATURES), generator=torch.Generator().manual_seed(0)))
    memory, costs = torch.zeros(5), torch.arange(15.0).reshape(5, 3)
    seen, ignored = (
        [policy.device_codes(latents, factor * costs, memory, 4.0) for factor in (1, 2)]
        for policy in (complete, without)
    )
    assert not torch.equal(*seen)
    assert torch.equal(*ignored)
    assert float(without.cost_weight().detach()) == 0
    fresh = training.start_training(bench.pool, bench.config(name.split("_")[0]), bench.seed)
    without_costs(fresh)
    moved = [not torch.equal(a, b) for a, b in zip(fresh.policy.parameters(), without.parameters(), strict=True)]
    assert sum(moved) >= len(moved) - 2


def test_a_search_starts_where_it_is_said_to(bench, monkeypatch):
    names = ("dreamshard", "dreamshard_without_policy", "dreamshard_without_rules", "dreamshard_from_rules")
    asked: set[str] = set()

    def watch(module, function):
        original = getattr(import_module(f"dreamshard.search.{module}"), function)

        def watched(*args, **kwargs):
            asked.add(function)
            return original(*args, **kwargs)

        monkeypatch.setattr(f"dreamshard.search.{module}.{function}", watched)

    placers = [bench.system(name).placer for name in names]
    watch("dreamshard_placer", "rollout")
    watch("dreamshard_placer", "cost_greedy")
    watch("placement_search", "rule_placements")
    starts = []
    for placer in placers:
        assert TASK.is_legal(placer.place(TASK))
        starts.append(set(asked))
        asked.clear()
    assert starts == [
        {"rollout", "cost_greedy", "rule_placements"},
        {"cost_greedy", "rule_placements"},
        {"rollout", "cost_greedy"},
        {"rule_placements"},
    ]


def test_without_exchanges_nothing_is_known_of_other_topologies(bench):
    wider = replace(TASK, num_devices=4)
    known, unknown = (bench.system(f"dreamshard{each}").placer for each in ("", "_without_exchanges"))
    assert known.cost_network.knows_topology(TASK)
    assert unknown.cost_network.knows_topology(TASK)
    assert len(known.cost_network.exchanges.points)
    assert not len(unknown.cost_network.exchanges.points)
    assert not unknown.cost_network.knows_topology(wider)


@pytest.mark.parametrize(
    ("name", "placements_per_step"), [("paper_real_mdp", 1), ("dreamshard_policy_real_mdp", DEVICES)]
)
def test_every_step_of_the_real_mdp_is_a_measurement(bench, name, placements_per_step):
    system = bench.system(name)
    steps = ROUNDS * UPDATES * EPISODES * TABLES
    names = {table for task in bench.tasks for table in task.tables.names}
    singles = system.measurements - placements_per_step * steps
    assert TABLES <= singles <= len(names), "each table is measured alone, once"
    costs = replace(system.placer.costs, measurements=0, _first_ms={})
    replace(system.placer, costs=costs).place(TASK)
    assert costs.measurements == TABLES + placements_per_step * TABLES


@pytest.mark.parametrize("algorithm", ["paper", "dreamshard"])
def test_the_real_mdp_sees_what_the_testbed_measures(bench, algorithm):
    exact = simulated(noise=0.0)
    costs = real_mdp.MeasuredCosts(exact, torch.Generator().manual_seed(0))
    state = training.start_training(bench.pool, bench.config(algorithm), 0)
    episodes = real_mdp.episodes_of(TASK, state.policy.kind, state.normaliser, costs).repeat(4)
    finished = real_mdp.measured_rollout(state.policy, TASK, episodes, costs, torch.Generator().manual_seed(1))
    measured = [exact.measure(TASK, Placement(device, DEVICES)) for device in finished.device]
    assert finished.overall_ms.tolist() == pytest.approx([sample.overall_ms for sample in measured], rel=1e-5)
    assert len({tuple(device) for device in finished.device.tolist()}) > 1
    before_last = finished.device.clone()
    before_last[torch.arange(4), episodes.order[:, -1]] = -1
    partial = exact.device_costs(TASK.tables, before_last, DEVICES, TASK.precision, TASK.optimizer)
    share = 1 if algorithm == "paper" else 1 / episodes.reference_ms[:, None]
    assert torch.allclose(finished.view.costs[:, -1, :, 0], (partial.forward_compute_ms * share).float(), rtol=1e-4)


def test_the_page_compares_each_variant_with_the_system_that_has_the_part():
    costs = {"dim_greedy": 10.0, "paper": 8.0, "paper_real_mdp": 6.0, "dreamshard_without_rules": 4.0}
    costs |= {"dreamshard": 2.0, "dreamshard_without_dim": 5.0}
    rows = [
        cell_result(
            experiment="ablations",
            placer=name,
            task=task,
            overall_ms=cost,
            compute_ms=cost,
            learning_s=2.5,
            measurements=50_422,
        )
        for name, cost in costs.items()
        for task in ("a", "b")
    ]
    text = page(rows)
    assert "| paper_real_mdp | paper | -25.0 (-25.0 to -25.0) | 50,422 | 2.5 | 2.5 |" in text
    assert "| dreamshard_without_dim | dreamshard_without_rules | +25.0 (25.0 to 25.0) |" in text
    assert "| dreamshard_without_rules | dreamshard | +100.0 (100.0 to 100.0) |" in text


def test_the_real_mdp_is_refused_where_it_would_take_days(bench):
    class Real:
        name = "cluster"

    other = copy(bench)
    other.testbed = Real()
    with pytest.raises(ValueError, match="which would take days on 'cluster'"):
        ABLATIONS["paper_real_mdp"](other)
