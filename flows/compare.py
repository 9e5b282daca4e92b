"""Any versions, rules of thumb and published rivals against each other, on tasks held out for all of them."""

from dataclasses import replace
from typing import Any

from prefect import flow

from flows import comparison_report, comparisons, measuring, steps_compare, tracking
from flows.form import form
from flows.home import configured
from flows.parameters import (
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
from flows.progress import progress_artifact


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
        measuring.testbeds(),
        progress_artifact("evaluate"),
        chain.stage("compare"),
    ):
        bench = measuring.reference(config, tables, seed)
        numbers = [version for version in who.values() if version is not None]
        tasks = steps_compare.draw_heldout(tables, config.tasks, seed, numbers)
        key = steps_compare.compare_placers(who, tables, tasks, replace(config.evaluation, peers=peers), bench)
        shown = steps_compare.show(chain.run, key)
    return {**shown, "table": comparison_report.rows(comparisons.load(key))}
