"""Testbeds that stay open between the Prefect tasks of one flow run.

Ranks take seconds to start: they start with the first measurement and end with the flow. Prefect tasks pass a
`TestbedReference`, never the testbed itself.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace

from prefect.utilities.timeout import timeout

from dreamshard.costs import SIMULATED, CostSample
from dreamshard.placement import Placement
from dreamshard.recipes import MeasureConfig, Recipe, batch_size_of
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds import open_testbed
from dreamshard.testbeds.base import Capacity, MeasurementError, Testbed, TestbedSetup
from dreamshard.workloads import Lookups, LookupSource
from flows.runtime import launched_ranks, run_locks
from storage.run_records.trainings import TestbedReference
from storage.store import Store

START_S = 120.0
"""The longest time that a testbed may take to start before its first measurement."""

_open: ContextVar[dict[TestbedReference, Testbed] | None] = ContextVar("_open", default=None)


def check_testbed(store: Store, config: Recipe) -> Capacity:
    """Check before ingestion that the testbed exists; returns what its devices hold.

    Raises:
        ValueError: it does not; the message lists those that do.
    """
    setup = _setup(store, config.tasks.num_devices, config.workload.batch_size, 0, config.measure, _no_lookups)
    testbed = _opened(config.testbed, setup)
    try:
        return testbed.capacity(config.tasks.num_devices)
    finally:
        testbed.close()


def testbed_reference(store: Store, config: Recipe, dataset: str, seed: int) -> TestbedReference:
    """The testbed of `config` on the lookups of `dataset`; stays open until the flow ends."""
    lookups = store.lake.lookup_source(dataset)
    setup = _setup(
        store, config.tasks.num_devices, batch_size_of(store.lake.read_dataset(dataset)), seed, config.measure, lookups
    )
    testbed = _opened(config.testbed, setup)
    reference = TestbedReference(
        name=config.testbed,
        kind=testbed.name,
        identity=testbed.hardware,
        links=testbed.links or testbed.hardware,
        num_devices=setup.num_devices,
        batch_size=setup.batch_size,
        dataset=dataset,
        seed=seed,
        measure=config.measure,
    )
    shared = _open.get()
    if shared is None or reference in shared:
        testbed.close()
    else:
        shared[reference] = testbed
    return reference


@contextmanager
def shared_testbeds() -> Iterator[None]:
    """Keep testbeds open for all measurements in this block, and close them when it ends."""
    shared: dict[TestbedReference, Testbed] = {}
    token = _open.set(shared)
    try:
        yield
    finally:
        _open.reset(token)
        for testbed in shared.values():
            testbed.close()


def close_others(reference: TestbedReference) -> None:
    """Close open testbeds on other data: the devices have room for the tables of one of them at a time."""
    shared = _open.get()
    for other in [other for other in shared or {} if other.dataset != reference.dataset]:
        if shared is not None:
            shared.pop(other).close()


@contextmanager
def shared_testbed(store: Store, reference: TestbedReference) -> Iterator[Testbed]:
    """The testbed, opened if necessary; one that fails is closed, so that a retry starts a new one."""
    shared = _open.get()
    if shared is None:
        with shared_testbeds(), shared_testbed(store, reference) as testbed:
            yield testbed
        return
    if reference not in shared:
        shared[reference] = open_reference(store, reference)
    try:
        yield shared[reference]
    except BaseException:
        shared.pop(reference).close()
        raise


def open_reference(store: Store, reference: TestbedReference) -> Testbed:
    """Open the testbed on the data of a store; the caller closes it."""
    lookups = store.lake.lookup_source(reference.dataset)
    setup = _setup(store, reference.num_devices, reference.batch_size, reference.seed, reference.measure, lookups)
    return _opened(reference.name, setup)


def capacity(store: Store, reference: TestbedReference) -> Capacity:
    """What the testbed's devices are and hold."""
    with shared_testbed(store, reference) as testbed:
        return testbed.capacity(reference.num_devices)


def in_round(reference: TestbedReference, number: int) -> TestbedReference:
    """The testbed for one round of repeated measurements: one that computes costs draws its error anew."""
    return replace(reference, seed=reference.seed + number) if reference.kind == SIMULATED else reference


def measurement_lock(reference: TestbedReference) -> AbstractContextManager[None]:
    """Lock for one measurement: no other process of this host measures, no matter which home it uses."""
    return nullcontext() if reference.kind == SIMULATED else run_locks.measuring()


def measure(store: Store, reference: TestbedReference, task: PlacementTask, placement: Placement) -> CostSample:
    """Measure one placement, or fail within a time limit, which a custom testbed may not keep itself.

    Raises:
        MeasurementError: a rank died, or no answer came within the time limit; the testbed is closed.
    """
    what = f"{task.name} ({len(task.tables)} tables on {task.num_devices} devices)"
    with answering(store, reference, what) as testbed:
        return testbed.measure(task, placement)


@contextmanager
def answering(store: Store, reference: TestbedReference, what: str) -> Iterator[Testbed]:
    """The testbed for one measurement, while no other process of this host measures.

    Raises:
        MeasurementError: the block raised it, or took longer than the time limit; the testbed is closed.
    """
    limit_s = reference.measure.timeout_s + min(reference.measure.timeout_s, START_S)
    try:
        with measurement_lock(reference), shared_testbed(store, reference) as testbed, timeout(limit_s):
            yield testbed
    except TimeoutError as error:
        raise MeasurementError(
            f"measuring {what} on {reference.identity} gave no answer within {limit_s:g} s, so the testbed was closed; "
            "earlier samples are kept: find out what it waits for, then start again"
        ) from error


def _opened(name: str, setup: TestbedSetup) -> Testbed:
    """Open a testbed by name, on the launcher's ranks if there are any."""
    return open_testbed(name, setup, launched_ranks.for_testbed(name))


def _setup(
    store: Store, num_devices: int, batch_size: int, seed: int, measure: MeasureConfig, lookups: LookupSource
) -> TestbedSetup:
    return TestbedSetup(
        num_devices=num_devices,
        batch_size=batch_size,
        lookups=lookups,
        seed=seed,
        warmups=measure.warmups,
        repeats=measure.repeats,
        timeout_s=measure.timeout_s,
        max_exchange_devices=max(measure.exchange_devices, default=None),
    )


def _no_lookups(name: str) -> Lookups:
    raise ValueError(f"the lookups of {name!r} were requested before anything was ingested; measure after ingesting")
