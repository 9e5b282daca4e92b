"""Measures the shards of placements on the hosts of a Ray cluster, for the `emulated` testbed.

Its costs are those of single shards, each measured once and kept in the lake. With `DREAMSHARD_TASK_RUNNER`, the workers
first measure the shards that are not known yet, one at a time per host, and the testbed then finds all of them in the
lake. With threads there is nothing to distribute: one device measures one shard after another.
"""

from collections.abc import Sequence

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from dreamshard.placement import Placement
from dreamshard.tables import Optimizer, Precision
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import check_placement
from dreamshard.testbeds.emulated import EmulatedTestbed
from dreamshard.testbeds.shard_runner import DoesNotFitError
from flows.runtime import task_runners
from flows.runtime.progress import report_progress
from flows.runtime.testbed_pool import TestbedReference, measurement_lock, open_reference, shared_testbed
from storage.store import Store

SHARDS_PER_TASK = 8
"""Each shard takes up to a second."""

Shard = tuple[tuple[str, ...], Precision, Optimizer]
"""Names of a shard's tables, and the other inputs of its cost."""


def measure_ahead(
    store: Store, reference: TestbedReference, proposals: Sequence[tuple[PlacementTask, Placement]]
) -> int:
    """Let the cluster, if there is one, measure the unknown shards of placements; returns how many were measured.

    Raises:
        ValueError: a worker has other hardware than this machine, so its costs are of no use here.
    """
    if not task_runners.is_remote():
        return 0
    with shared_testbed(store, reference) as testbed:
        if not isinstance(testbed, EmulatedTestbed):
            return 0
        unknown = _unknown_shards(testbed, proposals)
        hardware = testbed.hardware
    parts = [unknown[start : start + SHARDS_PER_TASK] for start in range(0, len(unknown), SHARDS_PER_TASK)]
    done = 0

    def finished(_position: int, count: int) -> None:
        nonlocal done
        done += count
        report_progress("measure", 0, len(proposals), f"{done} of {len(unknown)} shards")

    calls = [{"store": store, "reference": reference, "hardware": hardware, "shards": part} for part in parts]
    task_runners.run_all(measure_shards, calls, finished)
    return done


@task(name="measure shards", cache_policy=NO_CACHE, persist_result=False)
def measure_shards(store: Store, reference: TestbedReference, hardware: str, shards: Sequence[Shard]) -> int:
    """Shards -> their costs in the lake; returns the number of shards.

    Args:
        store: may be that of another machine.
        reference: an emulated testbed.
        hardware: hardware that this machine must have.
        shards: shards of tables in the testbed's dataset.

    Raises:
        ValueError: this machine has other hardware.
    """
    pool = store.lake.read_pool(reference.dataset)
    testbed = open_reference(store, reference)
    try:
        if not isinstance(testbed, EmulatedTestbed) or testbed.hardware != hardware:
            raise ValueError(
                f"this worker measures on {testbed.hardware}, but costs on {hardware} are needed, so its figures would "
                "be of no use; give the cluster workers of one kind, and start the flow on such a machine"
            )
        for names, precision, optimizer in shards:
            tables = pool.named(names)
            try:
                with measurement_lock(reference):
                    testbed.shard(tables, precision, optimizer)
            except DoesNotFitError:
                get_run_logger().info("%d tables from %s on did not fit", len(names), names[0])
    finally:
        testbed.close()
    return len(shards)


def _unknown_shards(testbed: EmulatedTestbed, proposals: Sequence[tuple[PlacementTask, Placement]]) -> list[Shard]:
    """Distinct shards of the placements without a known cost, in order."""
    unknown: dict[Shard, None] = {}
    for drawn, placement in proposals:
        shards = check_placement(drawn, placement, None)
        for d in shards.device.unique().tolist():
            tables = shards.tables.select((shards.device == d).nonzero().flatten())
            if testbed.cached(tables, drawn.precision, drawn.optimizer) is None:
                unknown[tables.names, drawn.precision, drawn.optimizer] = None
    return list(unknown)
