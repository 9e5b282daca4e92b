"""Any versions, rules of thumb and published rivals against each other, on tasks held out for all of them."""

from dataclasses import replace
from typing import Any

from flows.decisions import comparison, contestants
from flows.decisions.warm_start import setting_of
from flows.forms.form import deployed
from flows.forms.options import CompareOptions
from flows.reports import report_tables
from flows.runtime import testbed_pool
from flows.runtime.progress import announce
from flows.tasks import evaluation
from flows.tasks.drawing import draw_heldout_tasks
from flows.tasks.stage_inputs import configured, running
from storage.mlflow_store.topology import Topology
from storage.run_records import report_store
from storage.store import open_store


@deployed("compare")
def compare(options: CompareOptions) -> dict[str, Any]:
    """Versions -> tasks that none was trained on -> measured, paired comparison."""
    store = open_store()
    who = contestants.resolve(store, options.versions, with_rivals=options.rivals)
    versions = [version for version in who.values() if version is not None]
    options, taken = comparison.with_sizes_of_versions(store, options, versions)
    if taken:
        announce(taken)
    config, sizes, dataset = configured(store, options)
    with running(store, "compare", config, sizes, options.seed, progress="evaluate") as (_, parent):
        bench = testbed_pool.testbed_reference(store, config, dataset, options.seed)
        other = comparison.other_hardware(store, versions, str(Topology.of_setting(setting_of(config, bench))))
        if other:
            announce(other)
        tasks = draw_heldout_tasks(store, dataset, config.tasks, options.seed, versions)
        measured = replace(config.evaluation, rivals=options.rivals)
        key = evaluation.compare_placers(store, who, dataset, tasks, measured, bench)
        shown = evaluation.show_comparison(store, parent, key)
    report = report_store.load(store.comparisons, key)
    learnt = report_tables.learnt_sentence(report)
    if report.caveat:
        announce(report.caveat)
    return {
        **shown,
        **({"learnt_from": learnt} if learnt else {}),
        "notes": "; ".join(filter(None, (taken, other, report.caveat))),
        "title": report_tables.title(report),
        "table": report_tables.comparison_table(report),
    }
