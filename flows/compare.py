"""Compare versions, heuristics and TorchRec's planner, on tasks held out for all of them."""

import math
from itertools import pairwise
from statistics import fmean
from typing import Any

from dreamshard.costs import feasible
from dreamshard.evaluation import PairedComparison, mean_error, placement_identity
from flows.drawing import draw_heldout_tasks
from flows.evaluate import measure_and_report
from flows.forms.form import deployed
from flows.forms.options import CompareOptions
from flows.reports import evaluation_report
from flows.reports.mlflow_tracking import log_comparison
from flows.rules import contestants, heldout
from flows.rules.promotion import gain_text
from flows.runtime import testbed_pool
from flows.runtime.identity import content_key
from flows.runtime.tasks import announce, retried_task
from flows.stages import running
from storage.mlflow_store.registry import Version
from storage.run_records import report_store
from storage.run_records.trainings import TestbedReference, Training
from storage.store import Store, open_store


@deployed
def compare(options: CompareOptions) -> dict[str, Any]:
    """Versions -> tasks that none was trained on -> measured, paired comparison."""
    store = open_store()
    who = contestants.resolve(store, options.versions, model=options.model or "")
    versions = [version for version in who.values() if version is not None]
    config, dataset, taken = heldout.setting_of(store, versions)
    announce(taken)
    with running(store, "compare", config, options.seed) as run:
        bench = testbed_pool.testbed_reference(store, config, dataset, options.seed)
        training = Training(recipe=config, dataset=dataset, testbed=bench)
        other = heldout.other_hardware(versions, training.topology)
        tasks = draw_heldout_tasks(store, training, versions)
        key = compare_placers(store, who, tasks, bench)
        log_comparison(store, run, key)
    report = report_store.load(store, key)
    upgrades = [upgrade_sentence(store, *pair) for pair in pairwise(sorted(versions, key=lambda v: v.created))]
    for sentence in filter(None, (other, report.caveat, *upgrades)):
        announce(sentence)
    return {
        "upgrades": "; ".join(filter(None, upgrades)),
        "comparison": key,
        "held_out": evaluation_report.heldout_sentence(report),
        "report": str(report_store.path(store, key)),
        "page": run.address,
        **evaluation_report.outcome(report),
    }


def upgrade_sentence(store: Store, before: Version, after: Version) -> str:
    """How much other libraries changed the cost of the placements that were measured for both; empty without an upgrade."""
    of = [version.measured_on.versions if version.measured_on else {} for version in (before, after)]
    changed = [
        f"{name} {of[0].get(name, 'absent')} to {of[1].get(name, 'absent')}"
        for name, _ in of[0].items() ^ of[1].items()
    ]
    if not changed or before.made_of.costs_setting != after.made_of.costs_setting:
        return ""
    what = f"libraries changed from {before} to {after} ({', '.join(sorted({*changed}))})"
    one, two = (_measured_costs(store, version) for version in (before, after))
    ratios = [math.log(one[placement] / two[placement]) for placement in one.keys() & two.keys()]
    if len(ratios) < 2:
        return f"{what}, but no placement was measured with both; `dreamshard run --full` measures again"
    saved = PairedComparison.of(fmean(ratios), mean_error(ratios)[0], num_tasks=len(ratios))
    return f"{what}, which saves {gain_text(saved)} of the cost of the same {len(ratios)} placements"


def _measured_costs(store: Store, version: Version) -> dict[Any, float]:
    """Costs of all placements that a version's training and evaluation measured."""
    keys = (version.training, version.tags.get("evaluation", version.training))
    samples = feasible(sample for key in keys for sample in store.lake.read_cost_samples(key))
    return {(placement_identity(s.task, s.placement), *s.task.tables.rows.tolist()): s.overall_ms for s in samples}


@retried_task("compare placers")
def compare_placers(store: Store, names: dict[str, Version | None], tasks: str, testbed: TestbedReference) -> str:
    """Any placers on held-out tasks -> measured costs in the lake and a report, unless it exists; returns its key.

    Args:
        names: version of each placer, or None; see `contestants.resolve`. The first is the reference.

    Raises:
        NoPlacementError: a task fits no placement; before anything is measured.
        MeasurementError: a rank died or hung each time.
    """
    who = [version.model_id if version else name for name, version in names.items()]  # the same in all registries
    key = content_key("compare", who, tasks, testbed)
    if not report_store.path(store, key).exists():
        versions = [version for version in names.values() if version is not None]
        spec = testbed_pool.capacity(store, testbed).spec
        _, unseen = heldout.split_by_training(store, testbed.dataset, versions)
        measure_and_report(
            store,
            key,
            tasks,
            contestants.of_entrants(store, names, spec, testbed.seed),
            testbed,
            reference=next(iter(names)),
            fitted={v.training: v.made_of for v in versions},
            unseen_tables=len(unseen),
        )
    return key
