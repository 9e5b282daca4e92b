"""Makes the report of an evaluation from what was measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dreamshard.costs import PHASES
from dreamshard.evaluation import EvaluationRow, mean_overall_ms, paired_comparison, prediction_figures
from dreamshard.search import DreamShardPlacer
from storage.run_records.report_store import EvaluationReport, MeasuredRow, PlacerFigures


def make_report(
    key: str, rows: Sequence[EvaluationRow], reference: str, predictors: Mapping[str, DreamShardPlacer], **facts: Any
) -> EvaluationReport:
    """The figures of `rows`: every placer, and every pair of placers.

    Args:
        reference: placer that gains are reported over.
        predictors: placers whose cost networks are compared with what was measured, by name.
        facts: the other fields of the report.
    """
    names = list(dict.fromkeys(row.placer for row in rows))
    figures = [_figures(name, rows, predictors.get(name)) for name in names]
    return EvaluationReport(
        key=key,
        reference=reference,
        placers=tuple(sorted(figures, key=lambda line: -math.inf if line.overall_ms is None else -line.overall_ms)),
        gains={a: {b: paired_comparison(rows, a, b) for b in names if b != a} for a in names},
        rows=tuple(_measured(row) for row in rows),
        **facts,
    )


def _figures(name: str, rows: Sequence[EvaluationRow], predictor: DreamShardPlacer | None) -> PlacerFigures:
    own = [row for row in rows if row.placer == name]
    mape, spearman = None, None
    if predictor is not None:
        predicted = [replace(row, predicted_ms=predictor.predict_overall_ms(row.task, row.placement)) for row in rows]
        mape, spearman = map(_finite, prediction_figures(predicted))
    return PlacerFigures(
        placer=name,
        overall_ms=_finite(mean_overall_ms(rows, name)),
        predicted_ms=sum(row.predicted_ms for row in own) / len(own),
        place_ms=sum(row.place_ms for row in own) / len(own),
        predicted_mape=mape,
        predicted_spearman=spearman,
    )


def _measured(row: EvaluationRow) -> MeasuredRow:
    phases = row.costs.phases_ms().tolist()
    return MeasuredRow(
        placer=row.placer,
        task=row.task.name,
        device=tuple(row.placement.device.tolist()),
        overall_ms=row.overall_ms if row.legal else None,
        predicted_ms=row.predicted_ms,
        place_ms=row.place_ms,
        devices=tuple(dict(zip(PHASES, device, strict=True)) for device in phases),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
