from dataclasses import dataclass, field, replace

import torch

from dreamshard.search.packing import baselines
from dreamshard.tables import Placement
from dreamshard.tasks import NoPlacementError
from dreamshard.workloads import dataset_version
from flows.evaluate import Comparison, measure_and_report
from flows.reports.evaluation_report import outcome
from flows.rules.contestants import Contestants
from storage.run_records import report_store
from storage.store import Store
from tests.helpers.tables import pool_of, sample_tasks
from tests.helpers.versions import training_of

POOL = pool_of(24)
DATASET = dataset_version(POOL)


@dataclass
class Alternating:
    """All tables on device 0 and 1 in turn; no room for every second task."""

    name: str = "mine"
    seen: list[int | None] = field(default_factory=list)

    def place(self, task, budget_ms=None):
        self.seen.append(task.batch_size)
        if len(self.seen) % 2 == 0:
            raise NoPlacementError(f"no room for {task.name}")
        return Placement.whole([t % 2 for t in range(len(task.tables))], task.num_devices)


def evaluated(store: Store, candidate: Alternating, testbed: str):
    generator = torch.Generator().manual_seed(0)
    tasks = store.lake.write_tasks(sample_tasks(POOL, 6, 8, 2, 2**30, generator), DATASET, "test")
    made = training_of(hardware="abacus", testbed=testbed, dataset=DATASET, num_devices=2).testbed
    placers = {"dim_greedy": baselines()["dim_greedy"], "mine": candidate}
    contestants = Contestants(placers=placers, predictors={}, versions={}, candidate=None, notes=())
    bench = replace(made, batch_size=4096)
    comparison = Comparison(key="key", tasks=tasks, contestants=contestants, testbed=bench, reference="mine")
    measure_and_report(store, comparison)
    return report_store.load(store, "key")


def test_rounds_are_kept_and_a_placer_without_room_fails_on_that_task(store):
    candidate = Alternating()
    report = evaluated(store, candidate, "tests.helpers.testbeds:by_count")
    assert set(candidate.seen) == {4096}, "whatever batch a version was trained at"
    assert (report.placers[0].placer, report.placers[0].overall_ms) == ("mine", None), "first, without a mean"
    assert not report.gains["mine"]["dim_greedy"].fits
    rounds = store.lake.read_rounds("key")
    assert {(sample.round, sample.is_reference) for sample in rounds} == {(0, False), (1, False), (0, True), (1, True)}
    steadiness = report.steadiness
    assert (steadiness.rounds, steadiness.disturbed, steadiness.spread) == (len(rounds), 0.0, 0.0)


def test_a_machine_that_is_not_steady_is_noted(store):
    report = evaluated(store, Alternating(), "tests.flows.faulty_testbeds:slowing")
    assert report.steadiness.spread > 0.03
    assert f"not steady, so ignore differences in measured ms below {report.steadiness.noise():.0%} " in report.caveat
    assert outcome(report)["caveat"] == report.caveat, "which the terminal shows"
