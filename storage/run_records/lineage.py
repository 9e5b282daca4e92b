"""Where a placer came from: every version carries its `Origin` as a tag. `flows.decisions.warm_start` chooses by it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter

from dreamshard.costs import CostSample, MeasuredOn
from dreamshard.testbeds.device import library_versions
from dreamshard.training.config import DEFAULT_ALGORITHM, Algorithm
from storage.mlflow_store import registry
from storage.mlflow_store.topology import Topology
from storage.store import Store

TAG = "origin"
"""Tag of a version: its `Origin` as JSON."""

MEASURED_ON = "measured_on"
"""Tag of a version: its `MeasuredOn` as JSON."""

Setting = dict[str, str | int]
"""Conditions that must be equal for one training to continue another, by their names for people."""

ALL_TABLES = "all"
"""The tables per task of a fixed model, in a setting."""


@dataclass(frozen=True, kw_only=True)
class Warm:
    """The placer that a training starts from.

    Attributes:
        version: its version in the registry.
        training: key of the training that produced it.
        iteration: iteration of that training.
        trainings: trainings whose cost samples are fitted too: that one and its predecessors, oldest first.
        measurement_s: median seconds of one of its measurements; None if it made none.
        full_measurements: measurements of a training from nothing.
    """

    version: str
    training: str
    iteration: int
    trainings: tuple[str, ...]
    measurement_s: float | None
    full_measurements: int


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a training was made of; kept with its checkpoints, and as a tag of each of its versions.

    Attributes:
        recipe: name of the recipe.
        source: origin of its tables.
        dataset: version of its tables.
        tasks: key of its task sets and of their table split.
        setting: see `Setting`.
        warm: what it started from; None if it started from nothing.
        measurement_s: median seconds of one of its measurements; None before the first.
        memory_bytes: room on each device in its tasks.
        algorithm: that was trained.
    """

    recipe: str
    source: str
    dataset: str
    tasks: str
    setting: Setting
    warm: Warm | None = None
    measurement_s: float | None = None
    memory_bytes: int | None = None
    algorithm: Algorithm = DEFAULT_ALGORITHM

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @property
    def topology(self) -> Topology:
        """Hardware, devices and devices per host."""
        return Topology.of_setting(self.setting)

    @classmethod
    def from_json(cls, text: str) -> "Origin":
        """Parse the output of `to_json`."""
        return TypeAdapter(cls).validate_json(text)


@dataclass(frozen=True, kw_only=True)
class Version:
    """A registered placer and its origin.

    Attributes:
        version: a URI of the registry's.
        training: key of the training that produced it.
        iteration: iteration of that training.
        origin: see `Origin`.
        is_champion: whether it is champion of its topology.
        is_tryout: whether it was run without promoting, so that nothing continues from it by itself.
    """

    version: str
    training: str
    iteration: int
    origin: Origin
    is_champion: bool = False
    is_tryout: bool = False


def versions(store: Store) -> Iterator[Version]:
    """All versions of the store's algorithm that have an origin, newest first."""
    known = registry.tags_by_version(store.settings)
    champions = registry.champions(store.settings)
    for number, tags in known.items():
        if TAG in tags:
            yield Version(
                version=number,
                training=tags["training"],
                iteration=int(tags["iteration"]),
                origin=Origin.from_json(tags[TAG]),
                is_champion=number in champions,
                is_tryout=registry.TRYOUT in tags,
            )


def origin_of(store: Store, version: str) -> Origin | None:
    """The origin of a version; None if it has none."""
    text = registry.version_tags(store.settings, version).get(TAG)
    return None if text is None else Origin.from_json(text)


def earlier_samples(store: Store, warm: Warm | None) -> tuple[list[CostSample], int]:
    """Samples measured for the placer to start from and its predecessors, and their number with other library versions.

    Tables that have changed since are in the samples as they were measured, which stays true for a table of that size and
    use. Samples of other versions of torch or fbgemm are left out.
    """
    if warm is None:
        return [], 0
    now = library_versions()
    samples = [sample for training in warm.trainings for sample in store.lake.read_cost_samples(run_key=training)]
    same = [sample for sample in samples if sample.versions.items() <= now.items()]
    return same, len(samples)


def measured_on(tags: Mapping[str, str]) -> MeasuredOn | None:
    """What a version was measured on, from its tags; None if they do not say."""
    return MeasuredOn.from_json(json.loads(tags[MEASURED_ON])) if MEASURED_ON in tags else None


def tags(origin: Origin, measured: MeasuredOn | None) -> dict[str, str]:
    """The tags of a version that state its origin and what its costs were measured on."""
    conditions = {} if measured is None else {MEASURED_ON: json.dumps(measured.to_json())}
    return {TAG: origin.to_json()} | conditions
