"""What a training was made of, how long it took, and what its warm start saved; all of it measured.

`<store>/checkpoints/<training>/effort.json` holds the origin and the time spent so far.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dreamshard.costs import CostSample
from storage.filesystem import AnyPath, read_json, write_json
from storage.mlflow_store.version_names import in_words
from storage.run_records import checkpoints, lineage
from storage.run_records.lineage import Origin
from storage.store import Store

RECORD = "effort.json"


@dataclass(frozen=True, kw_only=True)
class TrainingEffort:
    """Measured effort of a finished training.

    Attributes:
        warm_start_version: version that the training started from; None if it started from nothing.
        samples_reused: earlier cost samples that the cost network was fitted to.
        samples_available: earlier cost samples in the lake, including those of other library versions.
        measurements_made: placements that the training measured itself.
        training_minutes: time for measuring and learning.
        measurements_saved: measurements fewer than in a training from nothing.
        minutes_saved: time of as many measurements of the earlier training; None if it is not known.
    """

    warm_start_version: str | None
    samples_reused: int
    samples_available: int
    measurements_made: int
    training_minutes: float
    measurements_saved: int
    minutes_saved: float | None

    @property
    def sentence(self) -> str:
        """The figures in words."""
        if self.warm_start_version is None:
            return f"from nothing: {self.measurements_made} measurements, {_minutes(self.training_minutes)}"
        minutes = "" if self.minutes_saved is None else f" and {_minutes(self.minutes_saved)}"
        return (
            f"warm from {in_words(self.warm_start_version)}: {self.samples_reused} of {self.samples_available} cost samples "
            f"re-used, {self.measurements_saved} of {self.measurements_saved + self.measurements_made} "
            f"measurements{minutes} saved"
        )

    @property
    def parameters(self) -> dict[str, str]:
        """The figures as parameters of a run."""
        minutes = {} if self.minutes_saved is None else {"minutes_saved": f"{self.minutes_saved:.2f}"}
        return {
            "measurements_made": str(self.measurements_made),
            "measurements_reused": str(self.samples_reused),
            "measurements_saved": str(self.measurements_saved),
            "training_minutes": f"{self.training_minutes:.2f}",
            **minutes,
        }


def begin(store: Store, training: str, origin: Origin) -> None:
    """Record what a training is made of, and the number of earlier samples for it."""
    samples, available = lineage.earlier_samples(store, origin.warm)
    record = {"origin": origin.to_json(), "samples_reused": len(samples), "samples_available": available}
    write_json(_path(store, training), record | {"training_s": 0.0, "measurement_s": []})


def read_origin(store: Store, training: str) -> Origin:
    """What a training was made of, with the median time of its measurements so far."""
    record = read_json(_path(store, training))
    seconds = record["measurement_s"]
    return replace(Origin.from_json(record["origin"]), measurement_s=statistics.median(seconds) if seconds else None)


def earlier_samples(store: Store, training: str) -> list[CostSample]:
    """The samples, measured for earlier placers, that this training is fitted to.

    Raises:
        ValueError: their number has changed since the training began.
    """
    record = read_json(_path(store, training))
    samples, _ = lineage.earlier_samples(store, Origin.from_json(record["origin"]).warm)
    if len(samples) != record["samples_reused"]:
        raise ValueError(
            f"training {training} began with {record['samples_reused']} earlier cost samples, but the lake now has "
            f"{len(samples)} of them, so resuming it would give another placer; start anew with --full"
        )
    return samples


def read(store: Store, training: str) -> TrainingEffort:
    """The effort of a training so far."""
    record = read_json(_path(store, training))
    warm = Origin.from_json(record["origin"]).warm
    made = len(store.lake.read_cost_samples(run_key=training))
    saved = max(0, warm.full_measurements - made) if warm else 0
    measurement_s = warm.measurement_s if warm else None
    return TrainingEffort(
        warm_start_version=warm.version if warm else None,
        samples_reused=record["samples_reused"],
        samples_available=record["samples_available"],
        measurements_made=made,
        training_minutes=record["training_s"] / 60,
        measurements_saved=saved,
        minutes_saved=None if measurement_s is None else saved * measurement_s / 60,
    )


@contextmanager
def timed(store: Store, training: str) -> Iterator[Callable[[float], None]]:
    """Add the time of the block to the training's; yields a function that records the seconds of one measurement."""
    start, seconds = time.perf_counter(), list[float]()
    try:
        yield seconds.append
    finally:
        record = read_json(_path(store, training))
        record["training_s"] += time.perf_counter() - start
        record["measurement_s"] += seconds
        write_json(_path(store, training), record)


def _path(store: Store, training: str) -> AnyPath:
    return checkpoints.folder(store, training) / RECORD


def _minutes(value: float) -> str:
    return f"{60 * value:.0f} s" if value < 1 else f"{value:.1f} minutes"
