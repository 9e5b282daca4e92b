"""Evaluation reports: placers measured on the same held-out tasks.

`<store>/evaluations/<key>.json` evaluates a training or compares registered versions, and
`<store>/evaluations/newest/<training>.json` names the evaluation of a training that was requested last.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from dreamshard.costs import MeasuredOn
from dreamshard.evaluation import PairedComparison
from dreamshard.testbeds.rounds import Steadiness
from storage.filesystem import AnyPath, read_json, write_json
from storage.store import Store

CANDIDATE = "dreamshard"
"""The placer of a training of the algorithm dreamshard; the champion is `champion VERSION`."""

CURRENT_PLAN = "current plan"
"""The current plan, which `--current` names."""


@dataclass(frozen=True, kw_only=True)
class PlacerFigures:
    """One placer over all tasks.

    Attributes:
        overall_ms: mean measured cost; None where a placement did not fit.
        predicted_ms: mean cost of its placements by the cost network of each placer that has one.
        place_ms: median time to find a placement of a task or variant, of versions until their search stalls; the first
            run compiles.
        predicted_mape: mean relative error of this placer's own cost network over all rows; None without one.
        is_split: whether it split a table in any task.
    """

    placer: str
    overall_ms: float | None
    predicted_ms: Mapping[str, float]
    place_ms: float
    predicted_mape: float | None = None
    is_split: bool = False


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """Placers measured on the same held-out tasks.

    Attributes:
        key: names the report and its rows in the lake.
        dataset: version of the tables.
        tasks: key of the task sets.
        measured_on: devices, setting and library versions of the measurements.
        steadiness: how steady the machine was.
        training: training of the candidate; None in a comparison of versions, as are the next two fields.
        iteration: number of iterations after which the candidate was taken.
        rival: version of the champion that the candidate has to beat; None if there is none.
        unseen_tables: number of tables that no compared version was trained on; None in an evaluation of a training.
        reference: placer that gains are reported over.
        placers: figures of each placer, most expensive first.
        gains: gain of each placer over each other one: on held-out tasks of a pool, or on a fixed model and variants of it.
        task_names: names of the held-out tasks, in order.
        model: name of the task of a fixed model, which the costs of `placers` are of; None for a pool.
        heldout_placements: placements behind the prediction errors, none of which was trained on.
        versions: URI of each registered version, by placer.
        caveat: reason to doubt the comparison; empty if there is none.
        candidate: the placer of the training, by its algorithm.
        level: cost of the reference placement over its cost in the training; None in a comparison.
        mispredicted: identities of a fixed model's placements that the candidate's network mispredicted; the training
            that continues from it learns them.
    """

    key: str
    dataset: str
    tasks: str
    measured_on: MeasuredOn
    steadiness: Steadiness
    training: str | None = None
    iteration: int | None = None
    rival: str | None = None
    unseen_tables: int | None = None
    reference: str
    placers: tuple[PlacerFigures, ...]
    gains: Mapping[str, Mapping[str, PairedComparison]]
    task_names: tuple[str, ...]
    model: str | None = None
    heldout_placements: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    caveat: str = ""
    candidate: str = CANDIDATE
    level: float | None = None
    mispredicted: tuple[str, ...] = ()

    @property
    def predictors(self) -> list[str]:
        """Placers that predict costs of steps, the candidate first; AutoShard predicts compute only."""
        return [*self.placers[-1].predicted_ms]  # the cheapest; one that never fitted has none

    def placer(self, name: str) -> PlacerFigures:
        """Figures of one placer."""
        return next(figures for figures in self.placers if figures.placer == name)

    def gain(self, placer: str, other: str) -> PairedComparison | None:
        """Gain of one placer over another; None over itself and over a placer that was not measured."""
        return self.gains[placer].get(other)


_JSON = TypeAdapter(EvaluationReport)


def path(store: Store, key: str) -> AnyPath:
    """File of a report."""
    return store.evaluations / f"{key}.json"


def save(store: Store, report: EvaluationReport) -> None:
    """Write the report as a whole."""
    write_json(path(store, report.key), _JSON.dump_python(report, mode="json"))


def load(store: Store, key: str) -> EvaluationReport:
    """Read a report.

    Raises:
        ValueError: there is no such report, or it is damaged.
    """
    try:
        return _JSON.validate_json(path(store, key).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValidationError) as error:
        raise ValueError(
            f"there is no report {path(store, key)}, or it is damaged ({error}); run `dreamshard evaluate`"
        ) from error


def mark_newest(store: Store, training: str, key: str) -> None:
    """Make a report the newest of its training, whether or not it was just measured."""
    write_json(_newest(store, training), {"key": key})


def newest(store: Store, training: str) -> EvaluationReport | None:
    """The report of a training that was requested last; None before the first. Raises like `load`."""
    named = _newest(store, training)
    return load(store, read_json(named)["key"]) if named.exists() else None


def _newest(store: Store, training: str) -> AnyPath:
    return store.evaluations / "newest" / f"{training}.json"
