"""Testbeds that stay open between the tasks of one flow run.

Ranks take seconds to start, so they start when the first measurement asks for them and end with the flow. Tasks pass a
`TestbedReference`, never the testbed itself.
"""

import importlib
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from prefect import get_run_logger
from prefect.utilities.timeout import timeout

from dreamshard.costs import CostSample
from dreamshard.files.digests import digest
from dreamshard.files.locks import measuring
from dreamshard.placement import Placement
from dreamshard.recipes import MeasureConfig, Recipe
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds import open_testbed, testbed_names
from dreamshard.testbeds.base import MeasurementError, Testbed, TestbedSetup
from dreamshard.workloads.lookups import Lookups, LookupSource
from flows.runtime import locks
from storage.lake import home_lake
from storage.lake.lake import Lake
from storage.lake.shard_cost_cache import LakeShardCache


@dataclass(frozen=True, kw_only=True)
class TestbedReference:
    """Names a testbed and everything that changes what it measures.

    Attributes:
        name: as on the command line.
        kind: what the testbed calls itself.
        identity: what the name means on this machine: hardware, and the source of one's own testbed.
        num_devices: devices of the tasks.
        batch_size: training samples per pass.
        dataset: version of the tables whose lookups are run.
        seed: of whatever the testbed draws.
        measure: warm-ups, repeats and the timeout.
    """

    __test__ = False  # not a pytest class

    name: str
    kind: str
    identity: str
    num_devices: int
    batch_size: int
    dataset: str
    seed: int
    measure: MeasureConfig


SIMULATED = "simulated"
START_S = 120.0
"""The most that a testbed may take to start before its first measurement."""

_open: ContextVar[dict[TestbedReference, Testbed] | None] = ContextVar("_open", default=None)


def check(config: Recipe) -> None:
    """Say at once, before anything is ingested, that a testbed does not exist.

    Raises:
        ValueError: it does not; the message lists those there are.
    """
    open_testbed(
        config.testbed, _setup(config.tasks.num_devices, config.workload.batch_size, 0, config.measure, _none)
    ).close()


def reference(config: Recipe, dataset: str, seed: int) -> TestbedReference:
    """The testbed that `config` asks for, measuring the lookups of `dataset`; kept open until the flow ends."""
    setup = _setup(
        config.tasks.num_devices, _batch_size(dataset), seed, config.measure, home_lake().lookup_source(dataset)
    )
    testbed = open_testbed(config.testbed, setup)
    wanted = TestbedReference(
        name=config.testbed,
        kind=testbed.name,
        identity=" ".join([testbed.hardware, *_own_source(config.testbed)]),
        num_devices=setup.num_devices,
        batch_size=setup.batch_size,
        dataset=dataset,
        seed=seed,
        measure=config.measure,
    )
    shared = _open.get()
    if shared is None or wanted in shared:
        testbed.close()
    else:
        shared[wanted] = testbed
    return wanted


@contextmanager
def testbeds() -> Iterator[None]:
    """Within this block measurements share their testbeds; all are ended with it."""
    shared: dict[TestbedReference, Testbed] = {}
    token = _open.set(shared)
    try:
        yield
    finally:
        _open.reset(token)
        for testbed in shared.values():
            testbed.close()


@contextmanager
def borrowed(wanted: TestbedReference) -> Iterator[Testbed]:
    """The testbed that `wanted` names, opened if need be; one that fails is ended, so that a retry starts afresh."""
    shared = _open.get()
    if shared is None:
        with testbeds(), borrowed(wanted) as testbed:
            yield testbed
        return
    if wanted not in shared:
        shared[wanted] = opened(wanted, home_lake())
    try:
        yield shared[wanted]
    except BaseException:
        shared.pop(wanted).close()
        raise


def turn(wanted: TestbedReference) -> AbstractContextManager[None]:
    """For a step that measures: flows that share a Prefect server measure on this host one step at a time.

    A simulated testbed measures nothing, so it waits for nobody.
    """
    return nullcontext() if wanted.kind == SIMULATED else locks.of_host()


def alone(wanted: TestbedReference | None = None) -> AbstractContextManager[None]:
    """For one measurement: no other process of this host measures, whichever home it belongs to."""
    return nullcontext() if wanted is not None and wanted.kind == SIMULATED else measuring()


def measure(
    wanted: TestbedReference, drawn: PlacementTask, placement: Placement, took: Callable[[float], None] | None = None
) -> CostSample:
    """What one placement costs, or an error in time: a testbed of one's own may not look at the clock itself.

    Args:
        wanted: where to measure.
        drawn: the tables and devices.
        placement: of those tables.
        took: told how many seconds that took, without waiting for one's turn.

    Raises:
        MeasurementError: a rank died, or nothing came back within the time limit; the testbed is ended.
    """
    limit_s = wanted.measure.timeout_s + min(wanted.measure.timeout_s, START_S)
    tables = f"{len(drawn.tables)} tables on {drawn.num_devices} devices"
    names = _named(drawn.tables.names)
    try:
        with alone(wanted), borrowed(wanted) as bench, timeout(limit_s):
            began = time.perf_counter()
            sample = bench.measure(drawn, placement)
            (took or _nobody)(time.perf_counter() - began)
    except TimeoutError as error:
        raise MeasurementError(
            f"measuring {drawn.name} ({tables}: {names}) on {wanted.identity} gave no answer within {limit_s:g} s, so "
            "the testbed was ended; earlier samples are kept: see what it waits for, then start again"
        ) from error
    except MeasurementError as error:
        said = "\n".join([str(error), *getattr(error, "__notes__", ())])  # the notes are what the rank itself said
        get_run_logger().error("%s with %s failed: %s", drawn.name, tables, said)
        raise
    get_run_logger().info("%s with %s: %s", drawn.name, tables, told(sample))
    return sample


def opened(wanted: TestbedReference, target: Lake) -> Testbed:
    """The testbed that `wanted` names on the data of a lake; whoever asks for it closes it."""
    lookups = target.lookup_source(wanted.dataset)
    setup = _setup(wanted.num_devices, wanted.batch_size, wanted.seed, wanted.measure, lookups, target)
    return open_testbed(wanted.name, setup)


def told(sample: CostSample) -> str:
    """What a log says of a sample: its cost, the rank that was slowest, and its tables."""
    misfit = sample.infeasible
    rank = int(sample.costs.device_ms().argmax()) if misfit is None else misfit.device
    task, placement = sample.task.sharded(sample.placement)
    held = [task.tables.names[t] for t in placement.tables_of(rank)]
    names = f"{len(held)} tables: {_named(held)}"
    if misfit is not None:
        return f"rank {rank} asked for {misfit.asked_bytes} bytes and had {misfit.free_bytes} ({names})"
    return f"{sample.overall_ms:.3f} ms, slowest is rank {rank} ({names})"


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _setup(
    num_devices: int,
    batch_size: int,
    seed: int,
    measure: MeasureConfig,
    lookups: LookupSource,
    target: Lake | None = None,
) -> TestbedSetup:
    return TestbedSetup(
        num_devices=num_devices,
        batch_size=batch_size,
        lookups=lookups,
        seed=seed,
        warmups=measure.warmups,
        repeats=measure.repeats,
        timeout_s=measure.timeout_s,
        shard_cache=LakeShardCache((home_lake() if target is None else target).root),
    )


def _nobody(_seconds: float) -> None:
    """Listens to no timing."""


def _none(name: str) -> Lookups:
    raise ValueError(f"the lookups of {name!r} were asked for before anything was ingested; measure after ingesting")


def _batch_size(dataset: str) -> int:
    """Samples per batch of the dataset's lookups."""
    tables = home_lake().read_dataset(dataset)
    busiest = int(tables.pooling_factor.argmax())
    return max(1, round(int(tables.lookups[busiest]) / max(float(tables.pooling_factor[busiest]), 1e-9)))


def _own_source(name: str) -> list[str]:
    """Hash of the source of one's own testbed: another version of it may measure other costs."""
    if name in testbed_names() or name.startswith("simulated"):
        return []
    source = inspect.getsourcefile(importlib.import_module(name.partition(":")[0]))
    return [] if source is None else [digest(Path(source).read_bytes(), 12)]
