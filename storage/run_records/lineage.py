"""Where a placer came from: a version carries its `Origin` as a tag. What the next training starts from, `starts` says."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from dreamshard.costs import CostSample
from dreamshard.search import DreamShardPlacer
from dreamshard.testbeds.machine import library_versions
from storage.mlflow_store import registry
from storage.store import Store

TAG = "origin"
"""The tag of a version that holds its `Origin`."""

Setting = dict[str, str | int]
"""What must be the same for one training to go on from another, by its name for people."""


@dataclass(frozen=True, kw_only=True)
class Warm:
    """The placer that a training goes on from.

    Attributes:
        version: in the registry.
        training: that it came out of.
        iteration: of that training.
        trainings: whose cost samples are fitted as well: that one and those before it, oldest first.
        measurement_s: mean seconds that one of its measurements took; None where it made none.
        full_measurements: how many it would take to train from nothing.
    """

    version: str
    training: str
    iteration: int
    trainings: tuple[str, ...]
    measurement_s: float | None
    full_measurements: int


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a training was made of; kept with its checkpoints, and as a tag on each of its versions.

    Attributes:
        recipe: by name.
        source: of its tables.
        dataset: version of its tables.
        tasks: key of its task sets, and of the halves that they were drawn from.
        setting: see `Setting`.
        networks: kinds of the cost network and of the policy.
        warm: what it went on from; None where it began with nothing.
        measurement_s: mean seconds of one of its measurements, once it has made some.
        memory_bytes: of each device in its tasks; None where nobody noted it.
    """

    recipe: str
    source: str
    dataset: str
    tasks: str
    setting: Setting
    networks: tuple[str, ...]
    warm: Warm | None = None
    measurement_s: float | None = None
    memory_bytes: int | None = None

    def to_json(self) -> str:
        """As text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Origin":
        """What `to_json` wrote."""
        found = json.loads(text)
        warm = found.pop("warm")
        if warm is not None:
            warm = Warm(**{**warm, "trainings": tuple(warm["trainings"])})
        return cls(**{**found, "networks": tuple(found["networks"])}, warm=warm)


@dataclass(frozen=True, kw_only=True)
class Version:
    """A registered placer and where it came from."""

    version: str
    training: str
    iteration: int
    origin: Origin


def versions(store: Store) -> Iterator[Version]:
    """All versions that say where they came from, newest first."""
    for number, tags in registry.tags_by_version(store.settings).items():
        if TAG in tags:
            origin = Origin.from_json(tags[TAG])
            yield Version(version=number, training=tags["training"], iteration=int(tags["iteration"]), origin=origin)


def origin_of(store: Store, version: str) -> Origin | None:
    """Where a version came from; None where it does not say."""
    found = registry.version_tags(store.settings, version).get(TAG)
    return None if found is None else Origin.from_json(found)


def load(store: Store, warm: Warm) -> DreamShardPlacer:
    """The placer to go on from.

    Raises:
        ValueError: it cannot be read.
    """
    return registry.load_placer(warm.version, store.settings)


def earlier_samples(store: Store, warm: Warm | None) -> tuple[list[CostSample], int]:
    """What was measured for the placer to go on from, and how many there are with those of other library versions.

    A table that has changed since is in them as it was when it was measured: a fact about a table of that size and use,
    whether or not there still is one. Samples of other versions of torch or fbgemm are left out.
    """
    if warm is None:
        return [], 0
    now = library_versions()
    found = [sample for training in warm.trainings for sample in store.lake.read_cost_samples(run_key=training)]
    return [sample for sample in found if _same(sample.versions, now)], len(found)


def _same(then: Mapping[str, str], now: Mapping[str, str]) -> bool:
    return all(now.get(library, version) == version for library, version in then.items())


def tags(origin: Origin) -> dict[str, str]:
    """The tags by which a version says where it came from."""
    return {
        TAG: origin.to_json(),
        "source": origin.source,
        "warm_start_from": origin.warm.version if origin.warm else "nothing",
    }
