"""The testbed that stays open between the Prefect tasks of one flow run.

Ranks take seconds to start: they start with the first measurement and end with the flow. Prefect tasks pass a
`TestbedReference`, never the testbed.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace

from prefect.utilities.timeout import timeout

from dreamshard.costs import SIMULATED, CostSample
from dreamshard.files import counted, gib
from dreamshard.recipes import Recipe
from dreamshard.tables import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds import open_testbed
from dreamshard.testbeds.base import Capacity, MeasurementError, Testbed, TestbedSetup
from dreamshard.workloads import LookupFiles
from flows.runtime import launched_ranks, run_locks
from storage.run_records.trainings import TestbedReference
from storage.store import Store

ANSWER_S = 420.0
"""The longest time that a measurement may take: the limit of a round, and two minutes for a testbed to start."""

Shared = dict[TestbedReference, tuple[Testbed, ExitStack]]
"""The open testbed, and what ends with it."""

_open: ContextVar[Shared | None] = ContextVar("_open", default=None)


def check_testbed(store: Store, config: Recipe) -> Capacity:
    """Check before ingestion that the testbed exists; returns what its devices hold.

    Raises:
        ValueError: it does not; the message lists those that do.
    """
    with closing(open_reference(store, _wanted(config, "", config.workload.batch_size, 0))) as testbed:
        return testbed.capacity()


def testbed_reference(store: Store, config: Recipe, dataset: str, seed: int) -> TestbedReference:
    """The testbed of `config` on the lookups of `dataset`."""
    wanted = _wanted(config, dataset, store.lake.read_dataset(dataset).batch_size, seed)
    with closing(open_reference(store, wanted)) as testbed:
        links = testbed.links or testbed.hardware
        return replace(wanted, kind=testbed.name, identity=testbed.hardware, links=links)


@contextmanager
def shared_testbeds() -> Iterator[None]:
    """Keep the testbed open between measurements in this block, and close it when the block ends."""
    shared: Shared = {}
    token = _open.set(shared)
    try:
        yield
    finally:
        _open.reset(token)
        _close(shared)


@contextmanager
def freeing_gpus() -> Iterator[None]:
    """Close a testbed on GPUs after the block, so that others have their memory while this process does other things."""
    yield
    shared = _open.get() or {}
    if any(testbed.capacity().kind == "gpu" for testbed, _ in shared.values()):
        _close(shared)


@contextmanager
def shared_testbed(store: Store, reference: TestbedReference) -> Iterator[Testbed]:
    """The testbed, opened if necessary in place of another: devices have memory for the tables of one.

    One that fails is closed, so that a retry starts a new one.
    """
    shared = _open.get()
    if shared is None:
        with shared_testbeds(), shared_testbed(store, reference) as testbed:
            yield testbed
        return
    if reference not in shared:
        _close(shared)
        testbed, ending = open_reference(store, reference), ExitStack()
        if testbed.capacity().kind == "gpu":  # others must not measure while it holds memory
            ending.enter_context(run_locks.measuring())
        ending.callback(testbed.close)
        shared[reference] = testbed, ending
    try:
        yield shared[reference][0]
    except BaseException:
        _close(shared)
        raise


def open_reference(store: Store, reference: TestbedReference) -> Testbed:
    """Open the testbed on the data of a store, and on the launcher's ranks if there are any; the caller closes it."""
    setup = TestbedSetup(
        num_devices=reference.num_devices,
        batch_size=reference.batch_size,
        lookups=store.lake.lookup_source(reference.dataset) if reference.dataset else LookupFiles({}),
        seed=reference.seed,
        max_exchange_devices=max(reference.exchange_devices, default=0),
    )
    return open_testbed(reference.name, setup, launched_ranks.for_testbed(reference.name))


def capacity(store: Store, reference: TestbedReference) -> Capacity:
    """Kind and memory of the testbed's devices."""
    with shared_testbed(store, reference) as testbed:
        return testbed.capacity()


def measure(store: Store, reference: TestbedReference, task: PlacementTask, placement: Placement) -> CostSample:
    """Measure one round of a placement.

    Raises:
        MeasurementError: as `answering`; or other processes hold so much of a GPU that a shard does not fit.
    """
    what = f"{task.name} ({counted(len(task.tables), 'table')} on {counted(task.num_devices, 'device')})"
    with answering(store, reference, what) as testbed:
        sample = testbed.measure(task, placement)
    misfit = sample.infeasible
    if misfit and misfit.foreign_bytes and misfit.asked_bytes <= misfit.free_bytes + misfit.foreign_bytes:
        raise MeasurementError(
            f"{what} does not fit device {misfit.device}, because other processes hold {gib(misfit.foreign_bytes)} of it; "
            "end them, then start again"
        )
    return sample


@contextmanager
def answering(store: Store, reference: TestbedReference, what: str) -> Iterator[Testbed]:
    """The testbed for one measurement, while no other process of this host measures, of any home.

    Raises:
        MeasurementError: a rank died, or no answer came within the time limit, which a custom testbed may not keep itself;
            the testbed is closed.
    """
    alone = nullcontext() if reference.kind == SIMULATED else run_locks.measuring()
    try:
        with alone, shared_testbed(store, reference) as testbed, timeout(ANSWER_S):
            yield testbed
    except TimeoutError as error:
        raise MeasurementError(
            f"measuring {what} on {reference.identity} gave no answer within {ANSWER_S:g} s, so the testbed was closed; "
            "earlier samples are kept: find out what it waits for, then start again"
        ) from error


def _wanted(config: Recipe, dataset: str, batch_size: int, seed: int) -> TestbedReference:
    """The reference to a testbed that has not been opened yet."""
    return TestbedReference(
        name=config.testbed,
        num_devices=config.tasks.num_devices,
        batch_size=batch_size,
        dataset=dataset,
        seed=seed,
        exchange_devices=config.exchange_devices,
    )


def _close(shared: Shared) -> None:
    while shared:
        shared.popitem()[1][1].close()
