"""The inputs of a training: recipe, dataset, tasks, testbed, warm start. Stages pass its key.

It is `<store>/checkpoints/<key>/training.json`, and a tag of its versions.

People write a version as `champion`, `3`, or MLflow's URI `models:/dreamshard.ads.a100-x8/3`. An alias or a number alone is
of the model in question, or of the only one.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter

from dreamshard.costs import SIMULATED, CostSample, is_simulated, library_versions
from dreamshard.evaluation import placement_identity
from dreamshard.hardware.accelerator import preset_of
from dreamshard.recipes import Recipe
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingConfig
from storage.filesystem import write_text
from storage.run_records import report_store
from storage.store import Store

RECORD = "training.json"

PREFIX = "dreamshard."
"""How names of registered models begin; the model and the topology follow, neither with a dot."""


ALIASES = ("champion", "challenger", "previous")
"""Of every registered model."""

WRITTEN = f"{', '.join(ALIASES)}, a number, or a URI such as models:/dreamshard.ads.a100-x8/3"
"""Ways to name a version, for messages."""

_URI = re.compile(r"models:/([^/@]+)[/@]([^/@]+)")


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Hardware, devices and devices per host. Costs are comparable only within one; each has a registered model per model.

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

    @property
    def label(self) -> str:
        """As part of a name: `h100-x8`, `simulated-a100-x8`, or `h100-2x8` for two hosts of eight."""
        device, _, links = self.hardware.partition(" for each device, links of ")
        spec = None if is_simulated(self.hardware) else preset_of(device)
        device = spec.name if spec else re.sub(r"( x\d+)?(, \d+ (ranks|hosts))*$", "", device)
        per_host = self.devices_per_host
        devices = f"{-(-self.num_devices // per_host)}x{per_host}" if per_host else f"x{self.num_devices}"
        return slug(f"{device} {links and f'links of {links}'} {devices}")

    def __str__(self) -> str:
        hosts = f", {self.devices_per_host} per host" if self.devices_per_host else ""
        return f"{self.hardware} · {self.num_devices} device{'s' if self.num_devices > 1 else ''}{hosts}"


@dataclass(frozen=True, kw_only=True)
class TestbedReference:
    """Names a testbed and everything that changes what it measures; until it is opened, not its kind and hardware.

    Attributes:
        name: as on the command line.
        kind: name that the testbed gives itself.
        identity: its hardware on this machine.
        links: kind of connection between devices, whatever their number.
        num_devices: devices of the tasks.
        batch_size: training samples per pass.
        dataset: version of the tables whose lookups are run.
        seed: seed of everything that the testbed draws.
        exchange_devices: as in `Recipe`.
    """

    __test__ = False  # not a pytest class

    name: str
    kind: str = ""
    identity: str = ""
    links: str = ""
    num_devices: int
    batch_size: int
    dataset: str
    seed: int
    exchange_devices: tuple[int, ...] = ()


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
    """The inputs of a training.

    Attributes:
        recipe: with all sizes; with the training settings of a training from scratch.
        dataset: version of the tables.
        tasks: key of the task sets drawn from them, and of their table split.
        testbed: where costs are measured; its seed is the training's.
        warm: placer to continue from; None to start from scratch.
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
    def model(self) -> str:
        """Name of the model that it trains for."""
        return named_model(self.recipe)

    @property
    def registered_model(self) -> str:
        """Name of the model's versions for its topology in MLflow: `dreamshard.ads.h100-x8`."""
        return f"{PREFIX}{self.model}.{self.topology.label}"

    @property
    def is_fixed(self) -> bool:
        """Whether it learns one model, so that no table is held out."""
        return self.recipe.tasks.mode == "fixed"

    @property
    def topology(self) -> Topology:
        """Setting of its costs."""
        return Topology(
            testbed=self.testbed.kind,
            hardware=self.testbed.identity,
            num_devices=self.recipe.tasks.num_devices,
            devices_per_host=self.recipe.tasks.devices_per_host,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What tells it from other trainings, as columns of the view `versions`."""
        tasks = self.recipe.tasks
        return {
            "model": self.model,
            "algorithm": self.recipe.training.algorithm,
            "source": self.source,
            "dataset_version": self.dataset,
            "tables_per_task": "all" if self.is_fixed else str(tasks.tables_per_task),
            "testbed": self.testbed.kind,
            "hardware": self.testbed.identity,
            "devices": tasks.num_devices,
            "memory_gb": round(tasks.memory_bytes / 2**30, 3),
            **{name: getattr(tasks, name) for name in ("mode", "devices_per_host", "precision", "optimizer")},
            "batch_size": self.testbed.batch_size,
            "recipe": self.recipe.name,
            "seed": self.testbed.seed,
            "warm_from": number_of(self.warm.version) if self.warm else None,
        }

    @cached_property
    def costs_setting(self) -> tuple[Any, ...]:
        """Everything besides its tables that its costs depend on, and its algorithm: trainings alike can share samples."""
        tasks, algorithm = self.recipe.tasks, self.recipe.training.algorithm
        return algorithm, self.topology, tasks.precision, tasks.optimizer, self.testbed.batch_size

    @property
    def setting(self) -> tuple[Any, ...]:
        """Everything besides the tables' state that a placer depends on: trainings of one setting may continue each other."""
        return (self.model, None if self.is_fixed else self.recipe.tasks.tables_per_task, *self.costs_setting)

    def to_json(self) -> str:
        """As JSON."""
        return _JSON.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Training":
        """Parse the output of `to_json`."""
        return _JSON.validate_json(text)


_JSON = TypeAdapter(Training)


def named_model(recipe: Recipe) -> str:
    """The name of a recipe's model."""
    return recipe.model or model_name(recipe.workload.source)


def model_name(source: str) -> str:
    """The name of a model that is not given: the last part of its source, such as `ads` of `s3://bucket/ads.csv`."""
    label = source_label(source)
    return slug(label if ":" in label else label.partition(".")[0])


def slug(text: str) -> str:
    """A text as part of a name: small letters, digits and single hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def source_label(source: str) -> str:
    """The last part of a path or address, or a bundled source's name: `tables.csv`."""
    return source.rstrip("/").rsplit("/", 1)[-1]


def write(store: Store, key: str, training: Training) -> None:
    """Keep what a training is made of."""
    write_text(store.checkpoints / key / RECORD, training.to_json())


def read(store: Store, key: str) -> Training:
    """The inputs of training `key`."""
    return Training.from_json((store.checkpoints / key / RECORD).read_bytes())


def tasks_of(store: Store, training: Training, split: str = "train") -> list[PlacementTask]:
    """The tasks that were drawn for a training, `train` or `test`; raises like `Lake.read_tasks`."""
    return store.lake.read_tasks(training.dataset, split, training.tasks)


def earlier_samples(store: Store, training: Training) -> list[CostSample]:
    """Samples measured for the placer that a training starts from and its predecessors; it is fitted to them too.

    With what evaluations of these measured and their networks mispredicted, of a fixed model: tables of a pool's
    evaluations stay held out. Tables that have changed since are in the samples as they were measured, which stays true for
    a table of that size and use. Samples of other library versions are left out.
    """
    now, samples = library_versions(), list[CostSample]()
    for key in training.warm.trainings if training.warm else ():
        samples += store.lake.read_cost_samples(key)
        if report := report_store.newest(store, key):
            evaluated = store.lake.read_cost_samples(report.key) if report.mispredicted else []
            samples += [s for s in evaluated if placement_identity(s.task, s.placement) in report.mispredicted]
    return [sample for sample in samples if sample.versions.items() <= now.items()]


def effort_sentence(store: Store, key: str) -> str:
    """Placements that a training measured; earlier samples that it re-used, and measurements fewer than from scratch."""
    training, made = read(store, key), len(store.lake.read_cost_samples(key))
    if training.warm is None:
        return f"from scratch: {made} measurements"
    reused, saved = len(earlier_samples(store, training)), max(0, training.recipe.training.measurements - made)
    return (
        f"warm from {in_words(training.warm.version)}: {reused} cost samples re-used, {saved} of {saved + made} "
        "measurements saved"
    )


def model_and_name(version: str) -> tuple[str, str]:
    """The registered model of a reference, empty if it names none, and its number or alias."""
    match = _URI.fullmatch(version)
    return (match[1], match[2]) if match else ("", version)


def names_version(text: str) -> bool:
    """Whether a text is a reference: an alias, a number, or a URI with one of them."""
    _, name = model_and_name(text)
    return name in ALIASES or name.isdecimal()


def number_of(version: str) -> int:
    """The number in a reference: 3 of `models:/dreamshard.ads.a100-x8/3`.

    Raises:
        ValueError: it names no number.
    """
    _, name = model_and_name(version)
    if not name.isdecimal():
        raise ValueError(f"{version!r} has no number, so it is not one version for ever; give {WRITTEN}")
    return int(name)


def in_words(version: str) -> str:
    """A version for people: `dreamshard.ads.a100-x8 version 3`, `champion`."""
    model, name = model_and_name(version)
    return f"{model} {'version ' if name.isdecimal() else ''}{name}".strip()
