"""The report of an evaluation: made from its measurements, and shown as a table, metrics, sentences and a page.

The terminal, Prefect's artifacts and MLflow show the same table and page.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from statistics import fmean, median
from typing import Any

from dreamshard.evaluation import (
    EvaluationRow,
    Over,
    PairedComparison,
    paired_comparison,
    placement_identity,
    prediction_error,
)
from dreamshard.search import DreamShardPlacer
from dreamshard.tasks import Shards
from dreamshard.testbeds.rounds import Steadiness
from flows.reports.pages import markdown_table
from flows.rules.promotion import gain_text
from storage.run_records.checkpoints import Metrics
from storage.run_records.report_store import CANDIDATE, EvaluationReport, PlacerFigures

Table = list[dict[str, Any]]

MISPREDICTED = 0.05
"""Relative error of a predicted cost above which a fixed model's next training learns the placement too."""


def make_report(
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
        model: name of the task of a fixed model, which costs are of; the other tasks are its variants.
        others: fields of the report besides the figures.
    """
    placed = [(row, row.placement) for row in rows if row.placement]
    names = list(dict.fromkeys(row.placer for row in rows if model in (None, row.task.name)))
    over: Over = "tasks" if model is None else "variants"
    priced = {
        name: [replace(row, predicted_ms=float(placer.predict(row.task, plan).overall_ms())) for row, plan in placed]
        for name, placer in predictors.items()
    }
    identities = [placement_identity(row.task, plan) for row, plan in placed]
    is_unseen = [identity not in known for identity in identities]
    errors = {name: _finite(prediction_error([*compress(of, is_unseen)])) for name, of in priced.items()}
    figures = [_figures(name, rows, model, priced, errors.get(name)) for name in names]
    predicted = zip(priced.get(others.get("candidate", CANDIDATE), ()) if model else (), identities, strict=False)
    return EvaluationReport(
        reference=reference,
        placers=tuple(sorted(figures, key=lambda line: -math.inf if line.overall_ms is None else -line.overall_ms)),
        gains={a: {b: paired_comparison(rows, a, b, over) for b in names if b != a} for a in names},
        task_names=tuple(dict.fromkeys(row.task.name for row in rows)),
        model=model,
        heldout_placements=len({(row.task.name, plan) for row, plan in compress(placed, is_unseen)}),
        mispredicted=tuple({i: 0 for row, i in predicted if abs(row.predicted_ms / row.overall_ms - 1) > MISPREDICTED}),
        **others,
    )


def _figures(
    name: str,
    rows: Sequence[EvaluationRow],
    model: str | None,
    priced: Mapping[str, Sequence[EvaluationRow]],
    error: float | None,
) -> PlacerFigures:
    def of_placer(every: Sequence[EvaluationRow]) -> list[EvaluationRow]:
        return [row for row in every if row.placer == name and model in (None, row.task.name)]

    ours = of_placer(rows)
    return PlacerFigures(
        placer=name,
        overall_ms=_finite(fmean(row.overall_ms for row in ours)),
        predicted_ms={
            by: fmean(row.predicted_ms for row in of_name) for by, of in priced.items() if (of_name := of_placer(of))
        },
        place_ms=median(row.place_ms for row in rows if row.placer == name),
        predicted_mape=error,
        is_split=any(
            row.placement and Shards.of(row.task, row.placement).tables.first_column is not None for row in ours
        ),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def outcome(report: EvaluationReport) -> dict[str, Any]:
    """The table of a report, and how far to trust it, as fields of a flow's outcome."""
    return {
        "testbed": report.measured_on.hardware,
        "title": title(report),
        "table": placers_table(report),
        "caveat": report.caveat,
        "prediction": prediction_sentence(report),
    }


def title(report: EvaluationReport) -> str:
    """Captions of a report: its tasks, and of what its columns are means."""
    what, ms, over = "Held-out tasks", "mean over tasks", "tasks"
    if report.model is not None:
        over = f"it and {len(report.task_names) - 1} variants that lack some tables"
        what, ms = "This model", "of it alone"
    columns = f"measured ms: fastest round, {ms}; saves: median over rounds, mean over {over}, with 95 % interval"
    return f"{what} on {report.measured_on}; {columns}"


def placers_table(report: EvaluationReport) -> Table:
    """One row per placer, cheapest last, and the saving of the candidate, or of the first of a comparison, over it."""
    first = report.reference if report.training is None else report.candidate
    rows = []
    for line in report.placers:
        row = {
            "placer": line.placer,
            "measured ms": "did not fit" if line.overall_ms is None else f"{line.overall_ms:.3f}",
            f"{first} saves": gain_text(report.gain(first, line.placer)),
        }
        for name in report.predictors:
            row[f"predicted by {name}"] = f"{line.predicted_ms[name]:.3f}" if name in line.predicted_ms else "-"
        if report.training is None:
            row["prediction error"] = "-" if line.predicted_mape is None else f"{line.predicted_mape:.1%}"
        split = "split" if line.is_split else "whole"
        rows.append(row | {"tables": split, "place ms": f"{line.place_ms:.2f}"})
    return rows


def evaluation_metrics(report: EvaluationReport) -> Metrics:
    """Figures of the candidate under the names that every version has in MLflow."""
    candidate = report.placer(report.candidate)
    error = candidate.predicted_mape
    champion = next((report.gain(report.candidate, name) for name in report.versions), None)
    return {
        "cost_ms": candidate.overall_ms,
        "prediction_error_pct": None if error is None else 100 * error,
        **_gain_metrics("gain_over_best_heuristic_pct", report.gain(report.candidate, report.reference)),
        **_gain_metrics("gain_over_champion_pct", champion),
    }


def steadiness_words(steadiness: Steadiness, level: float | None) -> str:
    """How steady the machine was while it measured; empty if costs were computed."""
    if steadiness.level_ms is None:
        return ""
    since = "" if level is None else f", at {level:.2f} times its cost in the training"
    spread = "was measured" if steadiness.spread is None else f"varied by {steadiness.spread:.1%}"
    return (
        f"a reference placement {spread}{since}, and {steadiness.disturbed:.0%} of rounds were disturbed: rounds took "
        f"{steadiness.excess:.0%} longer than the fastest on average"
    )


def _gain_metrics(name: str, gain: PairedComparison | None) -> Metrics:
    if gain is None:
        return {}
    figures = {name: gain.mean_gain, f"{name}_low": gain.low, f"{name}_high": gain.high}
    return {name: None if share is None else 100 * share for name, share in figures.items()}


def page(report: EvaluationReport, outcome: str, links: Mapping[str, str]) -> str:
    """A report as Markdown: its outcome, tables and links; Prefect and MLflow both show it.

    A comparison of versions also has the gain of every pair.
    """
    parts = [
        f"**{outcome}**",
        "## Cost of each placer, the cheapest last",
        f"{title(report)}.",
        markdown_table(placers_table(report)),
        report.caveat and f"Note: {report.caveat}.",
        prediction_sentence(report),
    ]
    if report.training is None:
        names = [line.placer for line in report.placers]
        pairs = [
            {"placer": name} | {f"over {other}": gain_text(report.gain(name, other)) for other in names}
            for name in names
        ]
        parts += ["## Every pair: measured cost saved (95 % interval, paired by task)", markdown_table(pairs)]
    parts += ["## Links"] if links else []
    for name, address in links.items():
        parts.append(f"- [{name}]({address})" if address.startswith(("#", "http")) else f"- {name}: {address}")
    return "\n\n".join(filter(None, parts))


def heldout_sentence(report: EvaluationReport) -> str:
    """Says which tasks, or of a fixed model which placements, are held out for all compared versions."""
    tasks, versions = report.task_names, ", ".join(report.versions.values())
    if report.model is not None:
        return (
            f"one fixed model of dataset {report.dataset} and {len(tasks) - 1} variants that lack some tables: none is "
            f"held out, but {report.heldout_placements} placements are, which no version of {versions} was trained on"
        )
    return (
        f"all {len(tasks)} tasks ({tasks[0]} to {tasks[-1]}) are held out for all: drawn from the "
        f"{report.unseen_tables} tables of dataset {report.dataset} that no version of {versions} was trained on"
    )


def prediction_sentence(report: EvaluationReport) -> str:
    """How well the candidate, or each compared version, predicts placements that it was not trained on."""
    doubts, machine = disagreements(report), steadiness_words(report.steadiness, report.level)
    also = f"; {machine}" if machine and machine not in report.caveat else ""
    if report.training is None:
        return f"Prediction errors are of a version's own cost network on all placements measured here{also}.{doubts}"
    error = report.placer(report.candidate).predicted_mape
    if error is None:
        return f"No prediction error: {report.candidate} predicts no step, or no placement here was held out{also}."
    return f"Prediction error: {error:.1%} on {report.heldout_placements} held-out placements{also}.{doubts}"


def disagreements(report: EvaluationReport) -> str:
    """Says of which placements the cost networks disagree most, if by more than `MISPREDICTED`; else empty."""

    def ratio(line: PlacerFigures) -> float:
        return max(line.predicted_ms.values()) / min(line.predicted_ms.values())

    most = max((line for line in report.placers if line.predicted_ms), key=ratio, default=None)
    if most is None or ratio(most) <= 1 + MISPREDICTED:
        return ""
    prices = ", ".join(f"{cost:.3f} ms by {name}" for name, cost in most.predicted_ms.items())
    return f" The cost networks disagree most on placements of {most.placer}: {prices}."
