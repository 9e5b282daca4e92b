"""The bootstrap network: which gains of a search the measurements support."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from dreamshard.algorithms import with_algorithm
from dreamshard.bootstrap import bootstrap_weights
from dreamshard.constraints import Constraints
from dreamshard.cost_model import StructuredCostNetwork
from dreamshard.model_files import load_placer, save_placer
from dreamshard.search import GreedyCostPlacer
from dreamshard.task_sampling import sample_tasks
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingConfig, continue_from, make_placer, start_training
from tests.helpers.tables import pool_of
from tests.helpers.testbeds import simulated
from tests.helpers.trained import TINY, bits, learnt_placer, rounds, run_round, tiny_tasks

CONFIG = TrainingConfig(iterations=3, placements_per_iteration=15, cost_steps=100, policy_updates=2, episodes=4)
PLACED = [PlacementTask(pool_of(12, seed), 3, 2**33) for seed in range(100, 108)]


@cache
@torch.enable_grad()
def placer_with_noise(noise: float):
    """Trained on measurements of this relative noise."""
    state, samples = start_training(pool_of(24), CONFIG, seed=0), []
    tasks = sample_tasks(pool_of(24), 8, 12, 3, 2**33, torch.Generator().manual_seed(1))
    for _ in range(CONFIG.iterations):
        samples = run_round(state, tasks, samples, simulated(noise=noise))
    return with_little_work(make_placer(state))


def with_little_work(placer):
    return replace(placer, budget_ms=10.0)


def taken(placer) -> int:
    """In how many tasks the search's placement is returned, and not the greedy one."""
    searching = replace(placer, bootstrap_network=None)
    return sum(torch.equal(placer.place(task).device, searching.place(task).device) for task in PLACED)


def test_the_search_is_trusted_where_measurements_are_exact_and_less_where_they_scatter():
    assert taken(placer_with_noise(0.5)) < taken(placer_with_noise(0.0))


def test_votes_are_asked_unless_new_measurements_were_as_predicted():
    exact, scattered = placer_with_noise(0.0), placer_with_noise(0.5)
    assert (exact.asks_votes, scattered.asks_votes) == (False, True)
    assert exact.bootstrap_network is not None, "a later training goes on with it"
    assert taken(exact) == len(PLACED)
    state = rounds(start_training(pool_of(24), TINY, seed=0), 1)[0]
    assert (state.heldout_error, make_placer(state).asks_votes) == (None, True), "nothing is known yet"
    for errors, asked in (((0.5, 0.5, 0.03, 0.04), False), ((0.0, 0.0, 0.04, 0.05), True), ((0.05,), True)):
        state.heldout_errors = errors
        assert make_placer(state).asks_votes == asked, errors


def alone(placer, member: int):
    """The placer with the network of one of its bootstrap network's members."""
    network = StructuredCostNetwork(placer.normaliser, members=1)
    parameters = dict(network.named_parameters())
    network.load_state_dict(
        {
            name: value[member : member + 1] if name in parameters else value
            for name, value in placer.bootstrap_network.state_dict().items()
        }
    )
    network.measured_on = placer.bootstrap_network.measured_on
    return replace(placer, cost_network=network)


def test_the_searchs_placement_is_returned_if_each_vote_is_for_it_else_the_greedy_one_is_and_that_is_said(
    caplog,
):
    placer = placer_with_noise(0.5)
    members, outcomes = [alone(placer, member) for member in range(10)], set()
    for task in PLACED:
        searched = replace(placer, bootstrap_network=None).place(task)
        greedy = GreedyCostPlacer(placer.cost_network, placer.normaliser).place(task)
        by_member = [
            member.predict_overall_ms(task, greedy) - member.predict_overall_ms(task, searched) for member in members
        ]
        gains = [by_member[2 * vote] + by_member[2 * vote + 1] for vote in range(5)]
        caplog.clear()
        with caplog.at_level("INFO"):
            found = placer.place(task)
        assert torch.equal(found.device, (searched if min(gains) > 0 else greedy).device)
        assert ("the measurements do not show" in caplog.text) == (min(gains) <= 0)
        outcomes.add(min(gains) > 0)
    assert outcomes == {True, False}


def test_constrained_tables_stay_where_they_must_whichever_placement_is_taken():
    placer = placer_with_noise(0.5)
    for task in PLACED:
        pinned = Constraints(pinned=dict.fromkeys(task.tables.names[:3], (2,)))
        assert placer.place(replace(task, constraints=pinned)).device[:3].tolist() == [2, 2, 2]


NONE = replace(TINY, bootstraps=0)


def test_it_changes_nothing_that_is_learnt_besides():
    with_it, without = (rounds(start_training(pool_of(24), config, seed=0), 2)[0] for config in (TINY, NONE))
    assert without.bootstrap is None
    kept = bits(without)
    assert all(torch.equal(bits(with_it)[name], value) for name, value in kept.items())


def test_there_is_none_without_members_nor_as_published_nor_before_a_measurement():
    paper = start_training(pool_of(24), with_algorithm(TINY, "paper"), seed=0)
    mixture = start_training(pool_of(24), replace(TINY, cost_network="paper"), seed=0)
    assert (paper.bootstrap, mixture.bootstrap) == (None, None)
    assert make_placer(start_training(pool_of(24), TINY, seed=0)).bootstrap_network is None
    assert make_placer(rounds(start_training(pool_of(24), NONE, seed=0), 1)[0]).bootstrap_network is None


def test_earlier_measurements_keep_their_weights_as_more_are_added():
    few, many = bootstrap_weights(5, 40), bootstrap_weights(5, 4000)
    assert torch.equal(few, many[:, :40])
    assert many.mean().item() == pytest.approx(1, abs=0.02)
    assert many.var().item() == pytest.approx(1, abs=0.05)
    assert len(many.unique(dim=0)) == 5


def test_a_saved_placer_keeps_it_and_one_saved_without_places_by_the_search_alone(tmp_path):
    placer = placer_with_noise(0.5)
    save_placer(placer, tmp_path / "with")
    save_placer(replace(placer, bootstrap_network=None), tmp_path / "without")
    save_placer(replace(placer, asks_votes=False), tmp_path / "unasked")
    loaded, without = with_little_work(load_placer(tmp_path / "with")), load_placer(tmp_path / "without")
    assert (loaded.asks_votes, load_placer(tmp_path / "unasked").asks_votes) == (True, False)
    assert without.bootstrap_network is None
    assert loaded.bootstrap_network.measured_on == placer.bootstrap_network.measured_on
    assert [loaded.place(task).device.tolist() for task in PLACED] == [
        placer.place(task).device.tolist() for task in PLACED
    ]


@pytest.mark.parametrize("votes", [2, 5, 7])
def test_a_training_goes_on_from_a_placer_with_other_votes_or_without_them(votes):
    config = replace(TINY, bootstraps=votes).warm()
    for earlier in (learnt_placer(), replace(learnt_placer(), bootstrap_network=None)):
        state = continue_from(earlier, config, seed=1)
        own, old = state.bootstrap.network, earlier.bootstrap_network or earlier.cost_network
        for member in range(2 * votes):
            assert torch.equal(own.slope[member], old.slope[member % old.members])
        after, _ = rounds(state, 1)
        assert not torch.equal(make_placer(after).bootstrap_network.slope[0], old.slope[0])


def test_its_members_saw_different_measurements_and_so_differ():
    state, _ = rounds(start_training(pool_of(24), TINY, seed=0), 2)
    network, task = state.bootstrap.network, tiny_tasks()[0]
    latents = network.encode(state.normaliser(task.tables))
    with torch.no_grad():
        sums = latents.sum(0)[None]
        ms, mean_ms = network.member_overall_ms(sums), network.overall_ms(sums)
    assert len(ms.unique()) == 10
    assert ms.mean().item() == pytest.approx(mean_ms.item(), rel=1e-4)


def test_a_file_whose_members_make_no_whole_votes_is_refused(tmp_path):
    placer = placer_with_noise(0.5)
    odd = StructuredCostNetwork(placer.normaliser, members=3)
    save_placer(replace(placer, bootstrap_network=odd), tmp_path / "placer")
    with pytest.raises(ValueError, match="3 members, which make no whole votes"):
        load_placer(tmp_path / "placer")
