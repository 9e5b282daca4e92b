"""What placements cost: exactly, and measured twice; and a whole cell on real ranks."""

from dataclasses import replace

import pytest

from dreamshard.baselines import RULES_OF_THUMB, baselines
from dreamshard.sweep import Cell, Size, cells_of, check_cells, page, run_cell, summarise, sweep
from dreamshard.sweep.judges import ExactCosts, MeasuredCosts
from dreamshard.sweep.tables import BATCH, draw_tasks
from dreamshard.testbeds.accelerators.specs import V100
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed

SETUP = TestbedSetup(num_devices=2, batch_size=BATCH, lookups=lambda name: pytest.fail(name))


class Drifting(SimulatedTestbed):
    """Every measurement is a tenth dearer than the one before."""

    def __init__(self):
        super().__init__(SETUP, V100, noise=0.0)
        self.order = []

    def measure(self, task, placement):
        self.order.append(task.name)
        sample = super().measure(task, placement)
        return replace(sample, overall_ms=sample.overall_ms * 1.1 ** len(self.order))


def test_exact_costs_are_those_of_the_simulator_and_measured_ones_are_means_of_two_in_mixed_order():
    tasks = draw_tasks("dim16", "validation", Size(6, 2), 4, seed=0)
    placed = [(task, baselines()["dim_greedy"].place(task)) for task in tasks]
    exact = ExactCosts(SETUP, V100).verdicts(placed)
    assert all(each.first_ms is None and each.compute_ms < each.overall_ms for each in exact)
    testbed = Drifting()
    measured = MeasuredCosts(testbed, seed=0).verdicts(placed)
    assert sorted(testbed.order) == sorted(2 * [task.name for task in tasks])
    assert testbed.order[:4] != testbed.order[4:]
    for own, true in zip(measured, exact, strict=True):
        assert own.first_ms < own.second_ms
        assert own.overall_ms == pytest.approx((own.first_ms + own.second_ms) / 2)
        assert own.compute_ms == pytest.approx(true.compute_ms)


@pytest.mark.processes
@pytest.mark.slow
def test_a_cell_on_real_ranks_is_learnt_from_and_judged_by_measurements():
    size = Size(4, 2)
    systems = (*RULES_OF_THUMB, "dreamshard")
    cell = Cell(
        experiment="real_ranks",
        dims="mixed",
        trained=size,
        placed=(size,),
        systems=systems,
        seed=0,
        split="validation",
        testbed="cluster:cpu",
        measurements=2,
        num_tasks=1,
    )
    results = run_cell(cell)
    assert [each.placer for each in results] == list(systems)
    assert not any(each.is_exact for each in results)
    assert all(each.overall_ms == pytest.approx((each.first_ms + each.second_ms) / 2) for each in results)
    assert {each.placer: each.measurements for each in results}["dreamshard"] == 2
    assert all(figure.noise > 0 and figure.predicted_over_true > 0 for figure in summarise(results))
    assert "again" in page(results)


def test_a_machine_without_fbgemm_is_refused_before_anything_runs(monkeypatch):
    cells = sweep("paper_table", short=True).cells
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"1 cells of the sweep measure on real ranks, .* with --no-real-ranks"):
        check_cells(cells)
    check_cells(cells_of(sweep("paper_table", short=True), real_ranks=False))
