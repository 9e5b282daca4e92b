"""Shards of placements measured by the hosts of a Dask or Ray cluster, for the `emulated` testbed.

Its costs are those of single shards, each measured once and kept in the lake. So with `DREAMSHARD_TASK_RUNNER` the shards
that are not known yet are measured on the workers first, each host taking its own one after another (`measuring.alone`),
and the testbed then finds them all in the lake. With threads there is nothing to share out: one device measures in turn.
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
from flows.runtime import task_runners, testbed_pool
from flows.runtime.progress import advance
from flows.runtime.testbed_pool import TestbedReference
from storage.lake import home_lake
from storage.lake.lake import Lake

SHARDS_PER_TASK = 8
"""Each takes up to a second."""

Shard = tuple[tuple[str, ...], Precision, Optimizer]
"""Names of its tables, and what its cost depends on besides."""


def measure_ahead(wanted: TestbedReference, pairs: Sequence[tuple[PlacementTask, Placement]]) -> int:
    """Have the cluster measure the shards of placements that are not known, if there is a cluster; returns how many.

    Raises:
        ValueError: a worker has other hardware than this machine, so that its costs are of no use here.
    """
    if not task_runners.is_remote():
        return 0
    with testbed_pool.borrowed(wanted) as testbed:
        if not isinstance(testbed, EmulatedTestbed):
            return 0
        unknown = _unknown(testbed, pairs)
        hardware = testbed.hardware
    parts = [unknown[start : start + SHARDS_PER_TASK] for start in range(0, len(unknown), SHARDS_PER_TASK)]
    done = 0

    def finished(position: int, count: int) -> None:
        nonlocal done
        done += count
        advance("measure", 0, len(pairs), f"{done} of {len(unknown)} shards")

    calls = [{"target": home_lake(), "wanted": wanted, "hardware": hardware, "shards": part} for part in parts]
    task_runners.run_all(measure_shards, calls, finished)
    return done


@task(name="measure shards", cache_policy=NO_CACHE, persist_result=False)
def measure_shards(target: Lake, wanted: TestbedReference, hardware: str, shards: Sequence[Shard]) -> int:
    """Shards -> their costs in the lake; returns how many were tried.

    Args:
        target: the lake, which may be that of another machine.
        wanted: an emulated testbed.
        hardware: what it must be here.
        shards: of tables of the testbed's dataset.

    Raises:
        ValueError: this machine has other hardware.
    """
    pool = target.read_dataset(wanted.dataset)
    testbed = testbed_pool.opened(wanted, target)
    try:
        if not isinstance(testbed, EmulatedTestbed) or testbed.hardware != hardware:
            raise ValueError(
                f"this worker measures on {testbed.hardware}, but costs of {hardware} are asked for, so its figures would "
                "be of no use; give the cluster workers of one kind, and start the flow on such a machine"
            )
        for names, precision, optimizer in shards:
            tables = pool.named(names)
            try:
                with testbed_pool.alone():
                    testbed.shard(tables, precision, optimizer)
            except DoesNotFitError:
                get_run_logger().info("%d tables from %s on did not fit", len(names), names[0])  # the testbed says it
    finally:
        testbed.close()
    return len(shards)


def _unknown(testbed: EmulatedTestbed, pairs: Sequence[tuple[PlacementTask, Placement]]) -> list[Shard]:
    """Distinct shards of the placements that no cost is kept of, in the order in which they come."""
    found: dict[Shard, None] = {}
    for drawn, placement in pairs:
        whole, legal = check_placement(drawn, placement, None)
        for d in range(whole.num_devices):
            held = legal.tables_of(d)
            if held and testbed.cached(whole.tables.select(held), whole.precision, whole.optimizer) is None:
                found[tuple(whole.tables.names[t] for t in held), whole.precision, whole.optimizer] = None
    return list(found)
