"""Sweeps: what is trained and placed where, and figures with intervals over tasks and seeds."""

from dataclasses import replace

import numpy as np
import pytest

from dreamshard.baselines import RULES_OF_THUMB, baselines
from dreamshard.placer import NoPlacementError
from dreamshard.sweep import (
    SWEEPS,
    Cell,
    CellResult,
    Size,
    cells_of,
    page,
    run_cell,
    summarise,
    sweep,
    with_all_budgets,
)
from dreamshard.sweep.ablations import ABLATIONS
from dreamshard.sweep.rosters import COSTLY, OTHERS, RULES, SLOW
from dreamshard.sweep.summary import gain_over
from dreamshard.sweep.systems import SYSTEMS
from dreamshard.sweep.tables import draw_tasks, pool_of
from tests.helpers.sweep import cell_result

SMALL = Size(8, 2)
CELL = Cell(
    experiment="sizes",
    trained=SMALL,
    placed=(SMALL, Size(12, 4)),
    systems=(*RULES_OF_THUMB, "dreamshard"),
    seed=0,
    split="validation",
    measurements=2,
    num_tasks=3,
)


@pytest.fixture(scope="module")
def results() -> list[CellResult]:
    return [result for seed in (0, 1) for result in run_cell(replace(CELL, seed=seed))]


def test_a_cell_places_every_task_of_every_size_with_every_system(results):
    assert len(results) == 2 * 2 * 3 * 5
    ours = [each for each in results if each.placer == "dreamshard"]
    assert {each.placed for each in ours} == {"8x2", "12x4"}
    assert {each.measurements for each in ours} == {2}
    assert all(each.overall_ms and each.predicted_ms and each.compute_ms < each.overall_ms for each in ours)
    assert all(each.measurements == 0 and each.predicted_ms is None for each in results if each.placer == "dim_greedy")
    assert not any(each.has_shards for each in results)


def test_experiments_are_chosen_by_name_and_cells_that_measure_may_be_left_out():
    designed = sweep("paper_table")
    assert cells_of(designed) == designed.cells
    assert {cell.experiment for cell in cells_of(designed, ["sizes", "workloads"])} == {"sizes", "workloads"}
    assert not any(cell.is_measured for cell in cells_of(designed, real_ranks=False))
    with pytest.raises(ValueError, match="all chosen cells measure on real ranks"):
        cells_of(designed, ["real_ranks"], real_ranks=False)


def test_a_rival_that_finds_no_room_to_learn_in_fails_every_task_and_no_other(monkeypatch: pytest.MonkeyPatch):
    def without_room(*_arguments, **_options):
        raise NoPlacementError("none of 80 placements fits")

    monkeypatch.setattr("dreamshard.sweep.systems.trained_peer", without_room)
    results = run_cell(replace(CELL, systems=("dim_greedy", "dreamshard", "rnn"), placed=(SMALL,)))
    assert {each.overall_ms for each in results if each.placer == "rnn"} == {None}
    assert all(each.overall_ms for each in results if each.placer != "rnn")


def test_seeds_place_the_same_tasks_and_the_same_cell_gives_the_same_placements(results):
    assert len({each.task for each in results if each.placed == "8x2"}) == 3
    again = run_cell(replace(CELL, systems=("dim_greedy", "dreamshard"), placed=(SMALL,)))
    known = {(each.placer, each.task): each.overall_ms for each in results if each.seed == 0}
    assert {(each.placer, each.task): each.overall_ms for each in again}.items() <= known.items()


def test_figures_name_the_best_rule_and_the_page_says_whom_to_trust(results):
    figures = {(each.placer, each.setting.placed): each for each in summarise(results)}
    best = figures["dreamshard", "8x2"].best_rule
    assert figures[best, "8x2"].gain.mean == 0
    assert figures[best, "8x2"].mean_ms == min(figures[rule, "8x2"].mean_ms for rule in RULES_OF_THUMB)
    text = page(results)
    assert "### Which placer to trust" in text
    assert "**Whole tables.** Of 2 settings, `dreamshard` is the cheapest beyond doubt in " in text
    assert "| placer | 8x2 | 8x2 to 12x4 | predicted/true | own error |" in text


def test_a_task_that_did_not_fit_stays_in_the_mean_as_infinitely_expensive(results):
    lost = [
        replace(each, overall_ms=None) if each.placer == "dreamshard" and each.seed == 1 else each for each in results
    ]
    figure = next(each for each in summarise(lost) if each.placer == "dreamshard")
    assert (figure.mean_ms, figure.gain.mean, figure.failures) == (None, None, 3)
    assert "no room in 3 of 6" in page(lost)


def test_results_that_seeds_do_not_share_are_refused(results):
    with pytest.raises(ValueError, match=r"has no result of task .* with seed 1, so its seeds did not place the same"):
        summarise(
            [each for each in results if not (each.seed == 1 and each.placer == "dreamshard" and "000" in each.task)]
        )


def test_the_interval_covers_tasks_and_seeds():
    generator = np.random.default_rng(0)
    reference = np.broadcast_to(generator.uniform(1, 3, 40), (3, 40))
    same = gain_over(0.9 * reference, reference)
    assert (same.mean, same.low, same.high) == pytest.approx((0.1, 0.1, 0.1))
    by_seed = gain_over(reference * np.array([[0.8], [0.9], [1.0]]), reference)
    assert by_seed.low < 0.03 < 0.17 < by_seed.high, "seeds that differ widen it"
    by_task = gain_over(reference * generator.uniform(0.8, 1.0, 40), reference)
    assert 0.07 < by_task.low < by_task.mean < by_task.high < 0.13


def test_training_validation_and_test_share_no_table():
    names = [set(pool_of("dim16", split).names) for split in ("train", "validation", "test")]
    assert sum(map(len, names)) == len(set.union(*names))
    (task,) = draw_tasks("mixed", "validation", Size(800, 128), 1, seed=0)
    assert len(set(task.tables.names)) == 800


def test_the_short_form_has_every_experiment_and_few_cells():
    cells = {short: sweep("paper_table", short=short).cells for short in (True, False)}
    assert {cell.experiment for cell in cells[True]} == {cell.experiment for cell in cells[False]}
    assert len(cells[True]) < 20
    by_seed = {cell.name.rpartition("-s")[0] for cell in cells[True] if cell.seed}
    with_seeds = {"sizes-mixed-20x4-m100", "sizes-mixed-50x4-m100", "measurements-mixed-50x4-m10"}
    assert by_seed == {f"{name}-validation" for name in with_seeds}, "intervals over seeds are of mixed dims"
    (complete, *_) = (cell for cell in cells[True] if cell.seed)
    assert {*RULES, *OTHERS} == {*complete.systems}
    assert not {*COSTLY, *SLOW} & {name for cell in cells[True] if cell.dims == "dim16" for name in cell.systems}


def test_the_table_of_transfer_has_every_placer_and_one_row_for_each_that_learns_nothing(results):
    rows = [replace(each, experiment="transfer", trained=size) for each in results for size in ("8x2", "9x2")]
    text = page(rows)
    assert text.count("| dreamshard | 8x2 |") == text.count("| dreamshard | 9x2 |") == 1
    assert all(text.count(f"| {rule} | - |") == 1 for rule in RULES_OF_THUMB)


def test_the_search_without_the_policy_is_shown_for_every_number_of_measurements(results):
    without = [replace(each, placer="dreamshard_without_policy") for each in results if each.placer == "dreamshard"]
    rows = [
        *results,
        *(replace(each, experiment="measurements", budget=1) for each in (*results, *without)),
        *(replace(each, experiment="ablations") for each in (*results, *without)),
    ]
    shown = [each for each in with_all_budgets(summarise(rows)) if each.setting.placed == "8x2"]
    own = [each.setting.budget for each in shown if each.placer == "dreamshard_without_policy"]
    assert own == [1, 2]
    assert [each.setting.budget for each in shown if each.placer == "dreamshard"] == [1, 2]


def test_errors_of_predictions_are_shown_for_each_number_of_measurements():
    rows = [
        cell_result(
            experiment="measurements", budget=budget, placer=placer, task="task", overall_ms=10.0, compute_ms=1.0, **own
        )
        for budget, share in ((10, 0.8), (30, 0.9))
        for placer, own in {
            "dim_greedy": {"dreamshard_ms": 10.0},
            "dreamshard": {"predicted_ms": 10 * share, "dreamshard_ms": 10 * share},
        }.items()
    ]
    text = page(rows)
    assert "| dreamshard | 0.800, 20.0 % | 0.900, 10.0 % |" in text
    assert "| dim_greedy | 1.000 | 1.000 |" in text


def test_times_are_shown_for_all_dims_and_for_sizes_that_are_only_moved_to():
    known = {"overall_ms": 1.0, "compute_ms": 1.0, "trained": "50x4", "budget": 100}
    rows = [
        cell_result(**known, experiment=experiment, placed=placed, placer=placer, dims=dims, place_ms=ms)
        for experiment, placed, times in (("sizes", "50x4", (1.0, 99.7)), ("transfer", "800x128", (9.0, 1234.5)))
        for dims in ("dim16", "mixed")
        for placer, ms in zip(("dim_greedy", "dreamshard"), times, strict=True)
    ]
    text = page(rows)
    for dims in ("dim16", "mixed"):
        _, _, table = text.partition(f"**CPU time, {dims}**")
        assert table.splitlines()[2] == "| placer | 50x4 | 50x4 to 800x128 |"
        assert "| dreamshard | 100 ms | 1,234 ms |" in table


@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.parametrize("short", [True, False])
def test_cells_have_names_of_their_own_and_systems_that_there_are(name, short):
    cells = sweep(name, short=short).cells
    assert len({cell.name for cell in cells}) == len(cells)
    assert {system for cell in cells for system in cell.systems} <= SYSTEMS.keys()
    assert {cell.seed for cell in cells} == {0, 1, 2}


def test_every_system_that_trains_within_a_minute_places_a_task_from_two_measurements():
    quick = [name for name in SYSTEMS if name not in (*SLOW, *ABLATIONS)]
    results = run_cell(replace(CELL, systems=tuple(quick), placed=(SMALL,), num_tasks=1))
    assert [each.placer for each in results] == quick
    assert all(each.overall_ms for each in results)
    learnt = {each.placer: each.measurements for each in results}
    assert {name for name, count in learnt.items() if count == 0} == {
        *baselines(),
        "torchrec_planner",
        "torchrec_planner_columns",
    }
    assert {count for count in learnt.values() if count} == {2}


def test_a_public_model_is_placed_with_variants_that_no_training_saw():
    cell = next(cell for cell in sweep("paper_table", short=True).cells if cell.experiment == "workloads")
    results = run_cell(replace(cell, systems=("dim_greedy", "size_greedy"), num_tasks=2))
    assert [each.task for each in results] == ["model", "variant-000"] * 2
    assert {each.testbed for each in results} == {"simulated a100"}


def test_wrong_names_are_refused_in_a_sentence():
    with pytest.raises(
        ValueError, match=r"there is no sweep 'none', so there is nothing to run; choose one of \['paper"
    ):
        sweep("none")
    with pytest.raises(ValueError, match="there is no system 'none'"):
        run_cell(replace(CELL, systems=("none",)))
    with pytest.raises(ValueError, match="is of testbed 'cluster', but sweeps judge placements by the exact"):
        run_cell(replace(CELL, testbed="cluster"))
