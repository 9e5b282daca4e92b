"""Testbeds that stay open between the tasks of one flow run.

Ranks take seconds to start, so they start when the first measurement asks for them and end with the flow. Tasks pass a
`TestbedReference`, never the testbed itself.
"""

import hashlib
import importlib
import inspect
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import torch

from dreamshard.recipes import MeasureConfig, Recipe
from dreamshard.testbeds import open_testbed
from dreamshard.testbeds.base import Testbed, TestbedSetup
from storage.lake import Lake
from storage.settings import Settings


@dataclass(frozen=True, kw_only=True)
class TestbedReference:
    """Names a testbed and everything that changes what it measures.

    Attributes:
        name: as on the command line.
        identity: what the name means on this machine: hardware, or the source of one's own testbed.
        num_devices: devices of the tasks.
        batch_size: training samples per pass.
        dataset: version of the tables whose lookups are run.
        seed: of whatever the testbed draws.
        measure: warm-ups, repeats and the timeout.
    """

    __test__ = False  # not a pytest class

    name: str
    identity: str
    num_devices: int
    batch_size: int
    dataset: str
    seed: int
    measure: MeasureConfig


_open: ContextVar[dict[TestbedReference, Testbed] | None] = ContextVar("_open", default=None)


def reference(config: Recipe, dataset: str, seed: int) -> TestbedReference:
    """The testbed that `config` asks for."""
    return TestbedReference(
        name=config.testbed,
        identity=identity(config.testbed),
        num_devices=config.tasks.num_devices,
        batch_size=config.workload.batch_size,
        dataset=dataset,
        seed=seed,
        measure=config.measure,
    )


def identity(name: str) -> str:
    """What a testbed's name stands for here, so that results of other hardware are never taken for this one's."""
    if name.startswith("simulated"):
        return "simulated"
    if ":" in name:
        return _source_hash(name)
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name(0)} x{torch.cuda.device_count()}"
    return f"{platform.node()} {platform.processor() or platform.machine()}"


@contextmanager
def testbeds() -> Iterator[None]:
    """Within this block measurements share their testbeds; all are ended with it."""
    opened: dict[TestbedReference, Testbed] = {}
    token = _open.set(opened)
    try:
        yield
    finally:
        _open.reset(token)
        for testbed in opened.values():
            testbed.close()


@contextmanager
def borrowed(wanted: TestbedReference) -> Iterator[Testbed]:
    """The open testbed that `wanted` names, opened if need be; one that fails is ended, so that a retry starts afresh."""
    opened = _open.get()
    if opened is None:
        with testbeds(), borrowed(wanted) as testbed:
            yield testbed
        return
    if wanted not in opened:
        opened[wanted] = _start(wanted)
    try:
        yield opened[wanted]
    except BaseException:
        opened.pop(wanted).close()
        raise


def _start(wanted: TestbedReference) -> Testbed:
    lake = Lake(Settings.load().lake_root)
    return open_testbed(
        wanted.name,
        TestbedSetup(
            num_devices=wanted.num_devices,
            batch_size=wanted.batch_size,
            lookups=lake.lookup_source(wanted.dataset),
            seed=wanted.seed,
            warmups=wanted.measure.warmups,
            repeats=wanted.measure.repeats,
            timeout_s=wanted.measure.timeout_s,
        ),
    )


def _source_hash(name: str) -> str:
    module_name = name.partition(":")[0]
    try:
        source = inspect.getsourcefile(importlib.import_module(module_name))
    except ModuleNotFoundError:
        return name  # opening it says what is wrong, in a sentence
    return name if source is None else f"{name} {hashlib.sha256(Path(source).read_bytes()).hexdigest()[:12]}"
