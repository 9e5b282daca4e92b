"""What a training is made of: one JSON beside its checkpoints. Stages pass its key."""

from dataclasses import dataclass

from pydantic import TypeAdapter

from dreamshard.recipes import MeasureConfig, Recipe
from dreamshard.task_sets.sampling import TasksConfig
from storage.filesystem import AnyPath, writing
from storage.run_records.lineage import ALL_TABLES, Origin, Setting, Warm
from storage.store import Store


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
class Training:
    """What a training is made of.

    Attributes:
        recipe: with all sizes, and the iterations that are to be run.
        dataset: version of the tables.
        tasks: key of the task sets drawn from them.
        testbed: where costs are measured; its seed is the training's.
        warm: placer to continue from; None to start from nothing.
        start: why it starts so, as it follows "training ... starts".
    """

    recipe: Recipe
    dataset: str
    tasks: str
    testbed: TestbedReference
    warm: Warm | None
    start: str

    @property
    def origin(self) -> Origin:
        """What versions of this training keep of it."""
        return Origin(
            recipe=self.recipe.name,
            source=self.recipe.workload.source,
            dataset=self.dataset,
            tasks=self.tasks,
            setting=setting_of(self.recipe, self.testbed),
            warm=self.warm,
            memory_bytes=self.recipe.tasks.memory_bytes,
            algorithm=self.recipe.training.algorithm,
        )


def setting_of(config: Recipe, testbed: TestbedReference) -> Setting:
    """Everything besides its tables that a placer depends on."""
    tasks, measure = config.tasks, testbed.measure
    return {
        "testbed": testbed.kind,
        "hardware": testbed.identity,
        "devices": tasks.num_devices,
        **tables_setting(tasks),
        "precision": tasks.precision,
        "optimizer": tasks.optimizer,
        "batch": testbed.batch_size,
        "warm-ups": measure.warmups,
        "repeats": measure.repeats,
        **({"devices per host": tasks.devices_per_host} if tasks.devices_per_host else {}),
    }


def tables_setting(tasks: TasksConfig) -> Setting:
    """The part of a setting that says of which tables tasks are made."""
    return {"tables per task": ALL_TABLES if tasks.mode == "fixed" else tasks.tables_per_task}


def write(store: Store, key: str, training: Training) -> None:
    """Keep what a training is made of."""
    with writing(_path(store, key)) as file:
        file.write(TypeAdapter(Training).dump_json(training, indent=2))


def read(store: Store, key: str) -> Training:
    """What the training `key` is made of."""
    return TypeAdapter(Training).validate_json(_path(store, key).read_bytes())


def _path(store: Store, key: str) -> AnyPath:
    return store.checkpoints / key / "training.json"
