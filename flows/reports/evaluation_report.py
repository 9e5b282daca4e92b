"""Makes the report of an evaluation from its measurements."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from dreamshard.evaluation import (
    EvaluationRow,
    Over,
    PairedComparison,
    mean_overall_ms,
    paired_comparison,
    placement_identity,
    prediction_figures,
)
from dreamshard.search import DreamShardPlacer
from dreamshard.shards import Shards
from storage.run_records.report_store import EvaluationReport, PlacerFigures, Subject


def make_report(
    subject: Subject,
    rows: Sequence[EvaluationRow],
    reference: str,
    predictors: Mapping[str, DreamShardPlacer],
    *,
    known: Collection[str] = (),
    model: str | None = None,
    **others: Any,
) -> EvaluationReport:
    """The figures of `rows`: every placer, and every pair of placers.

    Args:
        reference: placer that gains are reported over.
        predictors: placers whose cost networks are compared with the measurements, by name.
        known: identities of placements that were trained on, of which predictions prove nothing.
        model: name of the task of a fixed model; the other tasks are its variants.
        others: fields of the report besides the figures.
    """
    main = [row for row in rows if model in (None, row.task.name)]
    variants = [row for row in rows if model is not None and row.task.name != model]
    placed = [(row, placement_identity(row.task, row.placement)) for row in rows if row.placement]
    heldout = [(row, identity) for row, identity in placed if identity not in known]
    unseen = [row for row, _ in heldout]
    figures = [_figures(name, main, unseen, predictors.get(name)) for name in _names(main)]
    return EvaluationReport(
        **vars(subject),
        reference=reference,
        placers=tuple(sorted(figures, key=lambda line: -math.inf if line.overall_ms is None else -line.overall_ms)),
        gains=_gains(main, "tasks" if model is None else "repeats"),
        task_names=tuple(dict.fromkeys(row.task.name for row in rows)),
        model=model,
        variant_gains=_gains(variants, "variants"),
        heldout_placements=len({(row.task.name, identity) for row, identity in heldout}),
        **others,
    )


def _names(rows: Sequence[EvaluationRow]) -> list[str]:
    return list(dict.fromkeys(row.placer for row in rows))


def _gains(rows: Sequence[EvaluationRow], over: Over) -> dict[str, dict[str, PairedComparison]]:
    names = _names(rows)
    return {a: {b: paired_comparison(rows, a, b, over) for b in names if b != a} for a in names}


def _figures(
    name: str, rows: Sequence[EvaluationRow], heldout: Sequence[EvaluationRow], predictor: DreamShardPlacer | None
) -> PlacerFigures:
    own = [row for row in rows if row.placer == name]
    mape = None
    if predictor is not None:
        predicted = [
            replace(row, predicted_ms=float(predictor.predict(row.task, row.placement).overall_ms()))
            for row in heldout
            if row.placement
        ]
        mape = _finite(prediction_figures(predicted)[0])
    return PlacerFigures(
        placer=name,
        overall_ms=_finite(mean_overall_ms(rows, name)),
        predicted_ms=_finite(sum(row.predicted_ms for row in own) / len(own)),
        place_ms=median(row.place_ms for row in own),
        predicted_mape=mape,
        is_split=any(
            each.placement and Shards.of(each.task, each.placement).tables.first_column is not None for each in own
        ),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
