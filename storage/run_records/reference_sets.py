"""Reference sets: which tasks all versions of a topology are measured on, one JSON file per topology.

`<store>/reference_sets/<digest of the topology>.json` holds all sets of the topology; the last one is in use. A set stays as
it is for ever, and another one is drawn only when somebody asks for it.
"""

from dataclasses import dataclass

from pydantic import TypeAdapter

from dreamshard.files import json_digest
from dreamshard.recipes import MeasureConfig
from storage.filesystem import AnyPath, read_json, write_json
from storage.store import Store

FOLDER = "reference_sets"


@dataclass(frozen=True, kw_only=True)
class ReferenceSet:
    """Tasks of one topology, and how they are measured: the same for all versions.

    Attributes:
        topology: in words (`storage.mlflow_store.topology`).
        number: of the set among those of the topology, from 1.
        dataset: version of the tables.
        tasks: key of the tasks.
        batch_size: training samples per pass.
        measure: warm-ups, repeats and the timeout.
        asked_by: MLflow run that drew it.
    """

    topology: str
    number: int
    dataset: str
    tasks: str
    batch_size: int
    measure: MeasureConfig
    asked_by: str

    @property
    def key(self) -> str:
        """Names the set in tags and in the lake."""
        return f"{json_digest([self.topology, self.dataset, self.tasks])}-{self.number}"

    @property
    def name(self) -> str:
        """The set for people."""
        return f"reference set {f'{self.number} ' if self.number > 1 else ''}{self.topology}"


_JSON = TypeAdapter(list[ReferenceSet])


def reference_sets(store: Store, topology: str) -> list[ReferenceSet]:
    """All sets of a topology, the one in use last."""
    try:
        return _JSON.validate_python(read_json(_path(store, topology)))
    except FileNotFoundError:
        return []


def add(store: Store, new: ReferenceSet) -> None:
    """Use another set of its topology from now on."""
    known = reference_sets(store, new.topology)
    write_json(_path(store, new.topology), _JSON.dump_python([*known, new], mode="json"))


def _path(store: Store, topology: str) -> AnyPath:
    return store.settings.store_root / FOLDER / f"{json_digest(topology)}.json"
