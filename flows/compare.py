"""Any versions, rules of thumb and published rivals against each other, on tasks held out for all of them."""

from dataclasses import replace
from typing import Any

from flows.forms.form import deployed
from flows.forms.options import CompareOptions
from flows.reports import comparison_page, comparisons
from flows.runtime import testbed_pool
from flows.tasks import comparison
from flows.tasks.stage_inputs import configured, running
from storage.store import open_store


@deployed("compare")
def compare(options: CompareOptions) -> dict[str, Any]:
    """Versions -> tasks that none was trained on -> measured, paired comparison."""
    config, dataset = configured(open_store(), options)
    who = comparisons.resolve(options.versions, with_peers=options.peers)
    with running("compare", config, options.seed, progress="evaluate") as (_, parent):
        bench = testbed_pool.reference(config, dataset, options.seed)
        versions = [version for version in who.values() if version is not None]
        tasks = comparison.draw_heldout(dataset, config.tasks, options.seed, versions)
        evaluation = replace(config.evaluation, peers=options.peers)
        key = comparison.compare_placers(who, dataset, tasks, evaluation, bench)
        shown = comparison.show(parent, key)
    return {**shown, "table": comparison_page.rows(comparisons.load(key))}
