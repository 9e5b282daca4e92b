"""Algorithms by name: what each one decides, and that its placer keeps to it."""

from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.cost_model import PaperCostNetwork
from dreamshard.placer import NoPlacementError
from dreamshard.policy.mdp import Episode, rollout
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from dreamshard.training import load_placer, save_placer, with_algorithm
from tests.helpers.tables import pool_of
from tests.helpers.trained import TINY, make_placer, start_training

PAPER = with_algorithm(TINY, "paper")


def published():
    return make_placer(start_training(pool_of(24), PAPER, seed=0))


def test_the_published_algorithm_has_the_papers_networks_and_rates_and_keeps_the_numbers_of_rounds_and_steps():
    assert PAPER.exploration == 0
    assert isinstance(published().cost_network, PaperCostNetwork)
    assert (PAPER.cost_learning_rate, PAPER.policy_learning_rate, PAPER.entropy_weight) == (5e-4, 5e-4, 0.001)
    assert (PAPER.iterations, PAPER.cost_steps) == (TINY.iterations, TINY.cost_steps)


def test_a_setting_changed_on_purpose_survives_naming_the_same_algorithm():
    changed = replace(PAPER, cost_learning_rate=1e-3)
    assert with_algorithm(changed, "paper") == changed


def test_the_published_placer_returns_the_greedy_rollout_of_its_policy_also_from_a_file(tmp_path):
    placer = published()
    save_placer(placer, tmp_path / "model")
    task = PlacementTask(pool_of(14), 3, 2**33)
    greedy = rollout(placer.policy, Episode.of(task, placer.cost_network, placer.normaliser))
    for each in (placer, load_placer(tmp_path / "model")):
        assert (each.name, each.inference) == ("paper", "policy")
        assert torch.equal(each.place(task).device, greedy.device[0])
        assert each.place(task).device.tolist() == greedy.device[0].tolist()


@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(reserve_bytes=2**33 - 126_000_000),
        Constraints(memory_bytes_of={0: 2**18, 2: 2**20}),
        Constraints(excluded_devices=(1,)),
        Constraints(pinned=dict.fromkeys(pool_of(14).names[:5], (2,))),
    ],
    ids=["a reserve", "unequal devices", "an excluded device", "pinned tables"],
)
def test_the_published_placer_sees_the_room_and_tables_of_each_device(constraints):
    task = PlacementTask(pool_of(14), 3, 2**33, constraints=constraints)
    assert violation(task, published().place(replace(task, constraints=Constraints())))
    assert not violation(task, published().place(task))


def test_the_published_placer_says_that_it_found_nothing_legal():
    roomy = PlacementTask(pool_of(14), 2, 2**33)
    with pytest.raises(NoPlacementError, match=r"policy alone found no legal placement.*placer that searches"):
        published().place(replace(roomy, memory_bytes=int(roomy.table_bytes.sum()) // 2 + 1))
