"""What a training is made of, and its effort: two JSON files beside its checkpoints. Stages pass its key.

<store>/checkpoints/<key>/training.json    recipe, dataset, tasks, testbed, warm start; also a tag of its versions
<store>/checkpoints/<key>/effort.json      number of earlier samples, seconds of learning and of each measurement
"""

import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter

from dreamshard.costs import SIMULATED, CostSample, is_simulated
from dreamshard.recipes import MeasureConfig, Recipe
from dreamshard.testbeds.device import library_versions
from dreamshard.training import TrainingConfig
from dreamshard.training.config import Algorithm
from storage.filesystem import AnyPath, read_json, write_json, writing
from storage.store import Store
from storage.version_names import in_words

RECORD = "training.json"


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Hardware, devices and devices per host. Costs are comparable only within one; each has registered models of its own.

    Attributes:
        testbed: kind of testbed, e.g. `cluster`.
        hardware: as the testbed states it; starts with `simulated` if computed.
        devices_per_host: devices that share a host; None for as many as the hardware has.
    """

    testbed: str
    hardware: str
    num_devices: int
    devices_per_host: int | None = None

    @property
    def is_measured(self) -> bool:
        """Whether costs are measured on real devices, rather than computed or emulated."""
        return self.testbed not in (SIMULATED, "emulated") and not is_simulated(self.hardware)

    def registered_model(self, algorithm: Algorithm) -> str:
        """The name of the algorithm's registered model: `dreamshard-simulated-a100-8`, `dreamshard-simulated-a100-8x8`."""
        hardware = re.sub(r"[^a-z0-9]+", "-", self.hardware.lower()).strip("-")
        per_host = self.devices_per_host
        devices = f"{-(-self.num_devices // per_host)}x{per_host}" if per_host else str(self.num_devices)
        return f"{algorithm}-{hardware}-{devices}"

    def __str__(self) -> str:
        hosts = f", {self.devices_per_host} per host" if self.devices_per_host else ""
        return f"{self.hardware} · {self.num_devices} device{'s' if self.num_devices > 1 else ''}{hosts}"


@dataclass(frozen=True, kw_only=True)
class TestbedReference:
    """Names a testbed and everything that changes what it measures.

    Attributes:
        name: as on the command line.
        kind: name that the testbed gives itself.
        identity: its hardware on this machine.
        links: what connects the devices, whatever their number.
        num_devices: devices of the tasks.
        batch_size: training samples per pass.
        dataset: version of the tables whose lookups are run.
        seed: seed of everything that the testbed draws.
        measure: warm-ups, repeats and the timeout.
    """

    __test__ = False  # not a pytest class

    name: str
    kind: str
    identity: str
    links: str
    num_devices: int
    batch_size: int
    dataset: str
    seed: int
    measure: MeasureConfig


@dataclass(frozen=True, kw_only=True)
class Warm:
    """The placer that a training starts from.

    Attributes:
        version: its version in the registry.
        training: key of the training that produced it.
        iteration: iteration of that training.
        trainings: trainings whose cost samples are fitted too: that one and its predecessors, oldest first.
    """

    version: str
    training: str
    iteration: int
    trainings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a training is made of.

    Attributes:
        recipe: with all sizes; its training settings are those of a training from nothing.
        dataset: version of the tables.
        tasks: key of the task sets drawn from them, and of their table split.
        testbed: where costs are measured; its seed is the training's.
        warm: placer to continue from; None to start from nothing.
        start: why it starts so, as it follows "training ... starts".
    """

    recipe: Recipe
    dataset: str
    testbed: TestbedReference
    tasks: str = ""
    warm: Warm | None = None
    start: str = ""

    @property
    def config(self) -> TrainingConfig:
        """The settings that it is trained with."""
        return self.recipe.training.warm() if self.warm else self.recipe.training

    @property
    def source(self) -> str:
        """Origin of its tables."""
        return self.recipe.workload.source

    @property
    def is_fixed(self) -> bool:
        """Whether it learns one model, so that no table is held out."""
        return self.recipe.tasks.mode == "fixed"

    @property
    def topology(self) -> Topology:
        """What its costs are of."""
        return Topology(
            testbed=self.testbed.kind,
            hardware=self.testbed.identity,
            num_devices=self.recipe.tasks.num_devices,
            devices_per_host=self.recipe.tasks.devices_per_host,
        )

    @cached_property
    def setting(self) -> tuple[Any, ...]:
        """Everything besides its tables that a placer depends on: trainings of one setting may continue each other."""
        tasks, measure = self.recipe.tasks, self.testbed.measure
        size = None if self.is_fixed else tasks.tables_per_task
        step = (tasks.precision, tasks.optimizer, self.testbed.batch_size)
        return (self.topology, size, *step, measure.warmups, measure.repeats)

    def to_json(self) -> str:
        """As JSON."""
        return _JSON.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Training":
        """Parse the output of `to_json`."""
        return _JSON.validate_json(text)


_JSON = TypeAdapter(Training)


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Measured effort of a training.

    Attributes:
        warm_from: version that it started from; None if it started from nothing.
        measurements_made: placements that the training measured itself.
        measurements_reused: earlier cost samples that the cost network was fitted to.
        measurements_known: earlier cost samples in the lake, including those of other library versions.
        measurements_saved: measurements fewer than in a training from nothing.
        training_minutes: time for measuring and learning.
        minutes_saved: time of as many measurements of the earlier training; None if it is not known.
    """

    warm_from: str | None
    measurements_made: int
    measurements_reused: int
    measurements_known: int
    measurements_saved: int
    training_minutes: float
    minutes_saved: float | None

    @property
    def sentence(self) -> str:
        """The figures in words."""
        made, saved = self.measurements_made, self.measurements_saved
        if self.warm_from is None:
            return f"from nothing: {made} measurements, {_minutes(self.training_minutes)}"
        minutes = "" if self.minutes_saved is None else f" and {_minutes(self.minutes_saved)}"
        return (
            f"warm from {in_words(self.warm_from)}: {self.measurements_reused} of {self.measurements_known} cost samples "
            f"re-used, {saved} of {saved + made} measurements{minutes} saved"
        )

    @property
    def parameters(self) -> dict[str, str]:
        """The figures as parameters of a run."""
        known = {name: value for name, value in asdict(self).items() if name != "warm_from" and value is not None}
        return {name: f"{value:.2f}" if isinstance(value, float) else str(value) for name, value in known.items()}


def write(store: Store, key: str, training: Training) -> None:
    """Keep what a training is made of."""
    with writing(store.checkpoints / key / RECORD) as file:
        file.write(training.to_json().encode())


def read(store: Store, key: str) -> Training:
    """What the training `key` is made of."""
    return Training.from_json((store.checkpoints / key / RECORD).read_bytes())


def begin(store: Store, key: str) -> None:
    """Record the number of earlier samples that a training has."""
    samples, available = samples_of(store, read(store, key).warm)
    record = {"samples_reused": len(samples), "samples_available": available}
    write_json(_effort(store, key), record | {"training_s": 0.0, "measurement_s": []})


def samples_of(store: Store, warm: Warm | None) -> tuple[list[CostSample], int]:
    """Samples measured for the placer to start from and its predecessors, and their number with other library versions.

    Tables that have changed since are in the samples as they were measured, which stays true for a table of that size and
    use. Samples of other versions of torch or fbgemm are left out.
    """
    now, trainings = library_versions(), warm.trainings if warm else ()
    samples = [sample for training in trainings for sample in store.lake.read_cost_samples(run_key=training)]
    return [sample for sample in samples if sample.versions.items() <= now.items()], len(samples)


def earlier_samples(store: Store, key: str) -> list[CostSample]:
    """The samples, measured for earlier placers, that this training is fitted to.

    Raises:
        ValueError: their number has changed since the training began.
    """
    record, (samples, _) = read_json(_effort(store, key)), samples_of(store, read(store, key).warm)
    if len(samples) != record["samples_reused"]:
        raise ValueError(
            f"training {key} began with {record['samples_reused']} earlier cost samples, but the lake now has "
            f"{len(samples)} of them, so resuming it would give another placer; start again with --full"
        )
    return samples


def effort(store: Store, key: str) -> Effort:
    """The effort of a training so far."""
    record, training = read_json(_effort(store, key)), read(store, key)
    made = len(store.lake.read_cost_samples(run_key=key))
    saved, seconds = 0, list[float]()
    if training.warm:
        saved = max(0, training.recipe.training.measurements - made)
        before = _effort(store, training.warm.training)
        seconds = read_json(before)["measurement_s"] if before.exists() else []
    return Effort(
        warm_from=training.warm.version if training.warm else None,
        measurements_made=made,
        measurements_reused=record["samples_reused"],
        measurements_known=record["samples_available"],
        measurements_saved=saved,
        training_minutes=record["training_s"] / 60,
        minutes_saved=saved * statistics.median(seconds) / 60 if seconds else None,
    )


@contextmanager
def timed(store: Store, key: str) -> Iterator[Callable[[float], None]]:
    """Add the time of the block to the training's; yields a function that records the seconds of one measurement."""
    start, seconds = time.perf_counter(), list[float]()
    try:
        yield seconds.append
    finally:
        record = read_json(_effort(store, key))
        record["training_s"] += time.perf_counter() - start
        record["measurement_s"] += seconds
        write_json(_effort(store, key), record)


def _effort(store: Store, key: str) -> AnyPath:
    return store.checkpoints / key / "effort.json"


def _minutes(value: float) -> str:
    return f"{60 * value:.0f} s" if value < 1 else f"{value:.1f} minutes"
