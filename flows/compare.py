"""Any versions, rules of thumb and published rivals against each other, on tasks held out for all of them."""

from dataclasses import replace
from typing import Any

from prefect import flow

from flows.forms.fields import (
    Dataset,
    MemoryGb,
    NumDevices,
    Peers,
    RecipeName,
    Seed,
    TablesPerTask,
    TestbedName,
    Versions,
)
from flows.forms.schema import form
from flows.reports import comparison_page, comparisons, tracking
from flows.runtime import testbed_pool
from flows.runtime.progress import progress_artifact
from flows.tasks import comparison
from flows.tasks.stage_inputs import configured


@form
@flow(name="compare", persist_result=True, result_serializer="json")
def compare(
    versions: Versions,
    peers: Peers = False,
    recipe: RecipeName = "default",
    seed: Seed = 0,
    testbed: TestbedName = None,
    dataset: Dataset = None,
    num_devices: NumDevices = None,
    memory_gb: MemoryGb = None,
    tables_per_task: TablesPerTask = None,
) -> dict[str, Any]:
    """Versions -> tasks that none was trained on -> measured, paired comparison."""
    config, tables = configured(
        recipe,
        testbed,
        dataset,
        num_devices=num_devices,
        memory_gb=memory_gb,
        tables_per_task=tables_per_task,
    )
    who = comparisons.resolve(versions, with_peers=peers)
    with (
        tracking.chain("compare", config, seed) as chain,
        testbed_pool.testbeds(),
        progress_artifact("evaluate"),
        chain.stage("compare"),
    ):
        bench = testbed_pool.reference(config, tables, seed)
        numbers = [version for version in who.values() if version is not None]
        tasks = comparison.draw_heldout(tables, config.tasks, seed, numbers)
        key = comparison.compare_placers(who, tables, tasks, replace(config.evaluation, peers=peers), bench)
        shown = comparison.show(chain.run, key)
    return {**shown, "table": comparison_page.rows(comparisons.load(key))}
