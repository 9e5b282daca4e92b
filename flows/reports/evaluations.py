"""The report of an evaluation, `<store>/evaluations/<key>.json`: plain figures for tables, plots and decisions.

`newest/<training>.json` beside it names the report that was asked for last.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dreamshard.baselines import baselines
from dreamshard.costs import PHASES
from dreamshard.evaluation import EvaluationRow, best_baseline, paired_comparison, prediction_figures, summarise
from dreamshard.peers import peers
from dreamshard.placer import Placer
from dreamshard.search import DreamShardPlacer, GreedyCostPlacer
from dreamshard.tasks import PlacementTask
from flows.runtime.retries import passing
from storage.filesystem import AnyPath, write_json
from storage.mlflow_store import registry
from storage.store import open_store

CANDIDATE = "dreamshard"
"""The name of the placer that was just trained; the champion in use is called `champion VERSION`."""

Report = dict[str, Any]
"""`key`, `training`, `iteration`, `best_baseline`, `rival`, `summary` (one per placer), `comparisons`, `rows`, ..."""

logger = logging.getLogger(__name__)


def rival_name(version: str) -> str:
    """What an evaluation calls the champion in use."""
    return f"champion {version}"


def contestants(
    candidate: DreamShardPlacer,
    champion: Placer | None,
    rival: str | None,
    seed: int,
    peers_train_on: Sequence[PlacementTask] | None = None,
) -> dict[str, Placer]:
    """Every placer that is compared: rules of thumb, greedy on the cost network, the candidate, the champion in use.

    Args:
        peers_train_on: training tasks of the published rivals, which take part where they are given.
    """
    placers: dict[str, Placer] = {
        **baselines(seed),
        "cost_greedy": GreedyCostPlacer(candidate.cost_network, candidate.normaliser),
        **(peers(candidate, peers_train_on, seed) if peers_train_on else {}),
        CANDIDATE: candidate,
    }
    if rival is not None and champion is not None:
        placers[rival_name(rival)] = champion
    return placers


def champion_placer(rival: str | None) -> tuple[DreamShardPlacer | None, str]:
    """The champion in use, or None and why it cannot be used: one that is lost or old must not stop all retraining.

    Raises:
        ValueError: the registry or its store does not hand it out at present, which says nothing of the champion.
    """
    if rival is None:
        return None, ""
    try:
        return registry.load_placer(rival), ""
    except ValueError as error:
        if passing(error):
            raise
        logger.warning("champion version %s cannot be used, so it counts as beaten: %s", rival, error)
        return None, str(error)


def make_report(
    key: str,
    training: str,
    iteration: int,
    rows: Sequence[EvaluationRow],
    rival: str | None,
    testbed: str,
    rival_unusable: str = "",
) -> Report:
    """The figures of `rows`.

    Args:
        iteration: of the training; the candidate is what was learnt by its end.
        rival: the champion's version, if there is one that did not come out of this iteration.
        testbed: the hardware.
        rival_unusable: why the champion could not be measured too.
    """
    baseline = best_baseline(rows)
    mape, spearman = prediction_figures(rows)
    references = {"random", baseline} | ({rival_name(rival)} if rival and not rival_unusable else set())
    return {
        "key": key,
        "training": training,
        "iteration": iteration,
        "testbed": testbed,
        "predicted_mape": mape,
        "predicted_spearman": spearman,
        "candidate": CANDIDATE,
        "best_baseline": baseline,
        "rival": rival,
        "rival_unusable": rival_unusable,
        "summary": [asdict(summary) for summary in summarise(rows)],
        "comparisons": {name: asdict(paired_comparison(rows, CANDIDATE, name)) for name in sorted(references)},
        "rows": [plain(row) for row in rows],
    }


def path(key: str) -> AnyPath:
    """Where the report `key` lies."""
    return open_store().evaluations / f"{key}.json"


def save(report: Report) -> None:
    """Write the report, all of it or nothing, as the newest of its training."""
    write_json(path(report["key"]), report)
    _make_newest(report)


def load(key: str) -> Report:
    """The report `key`.

    Raises:
        ValueError: there is none.
    """
    file = path(key)
    try:
        found: Report = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"there is no evaluation {key} in {file.parent}, so nothing can be promoted by it; "
            "run `dreamshard evaluate`"
        ) from None
    return found


def use(key: str) -> None:
    """Make the report the newest: an evaluation that is asked for again need not be measured again."""
    _make_newest(load(key))


def newest(training: str) -> Report:
    """The latest report on a training.

    Raises:
        ValueError: it has not been evaluated.
    """
    try:
        return load(json.loads(_newest(training).read_text(encoding="utf-8"))["key"])
    except FileNotFoundError:
        raise ValueError(
            f"training {training} has not been evaluated, so nothing can be promoted by it; run `dreamshard evaluate`"
        ) from None


def _newest(training: str) -> AnyPath:
    return open_store().evaluations / "newest" / f"{training}.json"


def _make_newest(report: Report) -> None:
    write_json(_newest(report["training"]), {"key": report["key"]})


def require_of(report: Report, iteration: int) -> None:
    """Check that the report is of the training's last iteration: what is registered is what was measured.

    Raises:
        ValueError: training has gone on since.
    """
    evaluated = report.get("iteration")
    if evaluated != iteration:
        was = "an iteration that it does not name" if evaluated is None else f"iteration {evaluated}"
        raise ValueError(
            f"training {report['training']} stands at iteration {iteration}, but its evaluation is of {was}, so the "
            "figures are not those of the placer to promote; run `dreamshard evaluate` again, then promote"
        )


def plain(row: EvaluationRow) -> dict[str, Any]:
    """One placer on one task in plain figures, with the four phases of every device."""
    phases = row.costs.phases_ms().tolist()
    return {
        "placer": row.placer,
        "task": row.task.name,
        "device": row.placement.device.tolist(),
        "overall_ms": row.overall_ms,
        "predicted_ms": row.predicted_ms,
        "legal": row.legal,
        "place_ms": row.place_ms,
        "devices": [dict(zip(PHASES, device, strict=True)) for device in phases],
    }
