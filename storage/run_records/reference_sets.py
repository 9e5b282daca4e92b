"""Reference sets: which tasks all versions of a topology are measured on; one JSON file each, which stays as it is for ever.

`<store>/reference_sets/<digest of the topology>.json`
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
        topology: in words.
        dataset: version of the tables.
        tasks: key of the tasks.
        batch_size: training samples per pass.
        measure: warm-ups, repeats and the timeout.
    """

    topology: str
    dataset: str
    tasks: str
    batch_size: int
    measure: MeasureConfig

    @property
    def key(self) -> str:
        """Names the set in tags and in the lake."""
        return json_digest([self.topology, self.dataset, self.tasks])

    @property
    def name(self) -> str:
        """The set for people."""
        return f"reference set {self.topology}"


_JSON = TypeAdapter(ReferenceSet)


def find(store: Store, topology: str) -> ReferenceSet | None:
    """The set of a topology; None before the first version."""
    path = _path(store, topology)
    return _JSON.validate_python(read_json(path)) if path.exists() else None


def keep(store: Store, new: ReferenceSet) -> None:
    """Use a set for its topology from now on."""
    write_json(_path(store, new.topology), _JSON.dump_python(new, mode="json"))


def _path(store: Store, topology: str) -> AnyPath:
    return store.store_root / FOLDER / f"{json_digest(topology)}.json"
