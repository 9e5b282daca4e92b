"""What a training took, and what it saved by going on from an earlier placer; every figure is measured.

`<home>/checkpoints/<training>/origin.json` says what the training was made of, `effort.json` how long it took so far.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from dreamshard.costs import CostSample
from storage.filesystem import AnyPath, write_json
from storage.run_records import checkpoints
from storage.run_records.checkpoints import Metrics
from storage.run_records.lineage import Origin, earlier_samples
from storage.store import Store


@dataclass(frozen=True, kw_only=True)
class Savings:
    """Figures of a training that has come to its end.

    Attributes:
        version: that it went on from; None where it began with nothing.
        reused: earlier cost samples that it was fitted to.
        earlier: of how many that there are.
        made: placements that it measured itself.
        minutes: that measuring and learning took.
        measurement_s: median seconds of one measurement; None where it timed none.
        saved: measurements fewer than a training from nothing makes.
        saved_minutes: those times what a measurement took for the earlier placer; None where that is not known.
    """

    version: str | None
    reused: int
    earlier: int
    made: int
    minutes: float
    measurement_s: float | None
    saved: int
    saved_minutes: float | None

    @property
    def sentence(self) -> str:
        """The figures in words."""
        if self.version is None:
            return f"from nothing: {self.made} measurements, {_minutes(self.minutes)}"
        minutes = "" if self.saved_minutes is None else f" and {_minutes(self.saved_minutes)}"
        return (
            f"warm from version {self.version}: {self.reused} of {self.earlier} cost samples re-used, {self.saved} of "
            f"{self.saved + self.made} measurements{minutes} saved"
        )

    @property
    def metrics(self) -> Metrics:
        """The figures by the names that they have in MLflow."""
        found = {
            "measurements_made": float(self.made),
            "measurements_reused": float(self.reused),
            "training_minutes": self.minutes,
            "measurements_saved": float(self.saved),
            "minutes_saved": self.saved_minutes,
        }
        return {name: value for name, value in found.items() if value is not None}


def begin(store: Store, training: str, origin: Origin) -> None:
    """Keep what a training is made of, and how many earlier samples there are for it."""
    samples, there = earlier_samples(store, origin.warm)
    content = {"origin": origin.to_json(), "reused": len(samples), "earlier": there}
    checkpoints.folder(store, training).mkdir(parents=True, exist_ok=True)
    write_json(checkpoints.folder(store, training) / "origin.json", content)


def origin(store: Store, training: str) -> Origin:
    """What a training was made of, with the time that its measurements took."""
    seconds = _effort(store, training)["measurement_s"]
    return replace(
        Origin.from_json(_begun(store, training)["origin"]),
        measurement_s=statistics.median(seconds) if seconds else None,
    )


def earlier(store: Store, training: str) -> list[CostSample]:
    """The samples, measured for an earlier placer, that this training is fitted to.

    Raises:
        ValueError: they are no longer those that it began with.
    """
    begun = _begun(store, training)
    samples, _ = earlier_samples(store, Origin.from_json(begun["origin"]).warm)
    if len(samples) != begun["reused"]:
        raise ValueError(
            f"training {training} began with {begun['reused']} earlier cost samples, but the lake now has "
            f"{len(samples)} of them, so going on would not give what it began; start anew with --full"
        )
    return samples


def of(store: Store, training: str) -> Savings:
    """What the training took and saved."""
    begun, effort = _begun(store, training), _effort(store, training)
    made, came_from = len(store.lake.read_cost_samples(run_key=training)), origin(store, training)
    warm = came_from.warm
    saved = 0 if warm is None else max(0, warm.full_measurements - made)
    each_s = None if warm is None else warm.measurement_s
    return Savings(
        version=None if warm is None else warm.version,
        reused=begun["reused"],
        earlier=begun["earlier"],
        made=made,
        minutes=effort["training_s"] / 60,
        measurement_s=came_from.measurement_s,
        saved=saved,
        saved_minutes=None if each_s is None else saved * each_s / 60,
    )


@contextmanager
def working(store: Store, training: str) -> Iterator[Callable[[float], None]]:
    """Adds the time that the block takes to the training's; gives the function that is told how long a measurement took."""
    began, seconds = time.perf_counter(), list[float]()
    try:
        yield seconds.append
    finally:
        effort = _effort(store, training)
        effort["training_s"] += time.perf_counter() - began
        effort["measurement_s"] += seconds
        write_json(checkpoints.folder(store, training) / "effort.json", effort)


def _begun(store: Store, training: str) -> dict[str, Any]:
    return _read(checkpoints.folder(store, training) / "origin.json")


def _effort(store: Store, training: str) -> dict[str, Any]:
    path = checkpoints.folder(store, training) / "effort.json"
    return _read(path) if path.is_file() else {"training_s": 0.0, "measurement_s": []}


def _read(path: AnyPath) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _minutes(value: float) -> str:
    return f"{60 * value:.0f} s" if value < 1 else f"{value:.1f} minutes"
