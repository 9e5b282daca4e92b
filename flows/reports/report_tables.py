"""Tables and MLflow metrics of evaluation reports."""

from collections.abc import Mapping, Sequence
from typing import Any

from dreamshard.evaluation import PairedComparison
from dreamshard.testbeds.rounds import Steadiness
from storage.run_records.report_store import EvaluationReport

Table = list[dict[str, Any]]
Metrics = Mapping[str, float | None]
"""Figures by their names in MLflow, which has none for None."""


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same columns as a Markdown table; empty if there are no rows."""
    if not rows:
        return ""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([str(row[column]) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def outcome(report: EvaluationReport) -> dict[str, Any]:
    """The table of a report as fields of a flow's outcome."""
    return {"testbed": report.hardware, "title": title(report), "table": placers_table(report)}


def title(report: EvaluationReport) -> str:
    """Captions of a report: its tables, the basis of its intervals, and the predicting network."""
    by = f"; all predicted by {report.candidate}" if report.training is not None and report.is_predicted else ""
    on = report.measured_on or report.hardware
    if report.model is None:
        return f"Held-out tasks on {on}; 95 % intervals, paired by task{by}"
    return f"This model on {on}; 95 % intervals over {intervals_over(report)}{by}"


def intervals_over(report: EvaluationReport) -> str:
    """Basis of the intervals of a fixed model."""
    rounds = next((gain.num_repeats for gains in report.gains.values() for gain in gains.values()), 0)
    variants = len(report.task_names) - 1
    return f"{rounds} interleaved repeats" + (f", and over {variants} drifted variants of it" if variants > 1 else "")


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
        if report.model is not None:
            row["on variants"] = gain_text(report.variant_gain(first, line.placer))
        row["predicted ms"] = "-" if line.predicted_ms is None else f"{line.predicted_ms:.3f}"
        if report.training is None:
            row["prediction error"] = "-" if line.predicted_mape is None else f"{line.predicted_mape:.1%}"
        split = "split" if line.is_split else "whole"
        rows.append(row | {"tables": split, "place ms": f"{line.place_ms:.2f}"})
    return rows


def pairs_table(report: EvaluationReport) -> Table:
    """The gain of every placer over every other one."""
    names = [line.placer for line in report.placers]
    return [
        {"placer": name} | {f"over {other}": gain_text(report.gain(name, other)) for other in names} for name in names
    ]


def evaluation_metrics(report: EvaluationReport) -> Metrics:
    """Figures of the candidate under the names that every version has in MLflow."""
    candidate, over_random = report.placer(report.candidate), report.gain(report.candidate, "random")
    steady = report.steadiness
    return {
        "eval_overall_ms": candidate.overall_ms,
        "eval_gain_over_random": over_random and over_random.mean_gain,
        **_gain_metrics("eval_gain_over_best_baseline", report.gain(report.candidate, report.reference)),
        **_gain_metrics("eval_gain_over_torchrec", report.gain(report.candidate, "torchrec_planner")),
        **_gain_metrics("eval_gain_on_variants", report.variant_gain(report.candidate, report.reference)),
        "eval_predicted_mape": candidate.predicted_mape,
        "eval_place_ms": candidate.place_ms,
        "machine_level": report.level,
        "machine_spread": steady and steady.spread,
        "disturbed_rounds": steady and steady.disturbed,
    }


def gains_over_champion(report: EvaluationReport) -> Metrics:
    """The candidate's gain over the champion on the same tasks, with its interval; empty without a measured champion."""
    return _gain_metrics(
        "gain_over_champion", next((report.gain(report.candidate, name) for name in report.versions), None)
    )


def gain_text(gain: PairedComparison | None) -> str:
    """A paired gain with its 95 % interval, e.g. `+4.2 % (+2.0 to +6.3)`."""
    if gain is None:
        return "-"
    if gain.mean_gain is None:
        return "fits where the other does not" if gain.fits else "did not fit"
    if gain.is_same_placement:
        return "same placement"
    if gain.low is None or gain.high is None:
        return f"{100 * gain.mean_gain:+.1f} %"
    return f"{100 * gain.mean_gain:+.1f} % ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"


def steadiness_words(steadiness: Steadiness | None, level: float | None) -> str:
    """How steady the machine was while it measured; empty if costs were computed."""
    if steadiness is None or steadiness.level_ms is None:
        return ""
    since = "" if level is None else f", at {level:.2f} times its cost in the training"
    spread = "" if steadiness.spread is None else f" varied by {steadiness.spread:.1%}"
    return f"a reference placement{spread or ' was measured'}{since}, and {steadiness.disturbed:.0%} of rounds were disturbed"


def _gain_metrics(name: str, gain: PairedComparison | None) -> Metrics:
    return {} if gain is None else {name: gain.mean_gain, f"{name}_low": gain.low, f"{name}_high": gain.high}
