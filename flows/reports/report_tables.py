"""Tables and MLflow metrics of evaluation reports."""

import math
from collections.abc import Mapping
from typing import Any

from dreamshard.evaluation import PairedComparison
from dreamshard.measured_on import MeasuredOn
from dreamshard.rivals import MEASURING
from storage.run_records.checkpoints import Metrics
from storage.run_records.report_store import EvaluationReport

Table = list[dict[str, Any]]


def title(report: EvaluationReport) -> str:
    """What the tables of a report show, what its intervals are over, and whose network predicts."""
    by = f"; all predicted by {report.candidate}" if report.training is not None and report.is_predicted else ""
    if report.model is None:
        return f"Held-out tasks on {report.hardware} ({_setting(report)}95 % intervals, paired by task{by})"
    return f"This model on {report.hardware} ({_setting(report)}95 % intervals over {intervals_over(report)}{by})"


def predicted_by(report: EvaluationReport, placer: str) -> str:
    """The placer whose network predicts the costs of another one's placements.

    In an evaluation of a training that is the candidate. In a comparison each version predicts its own, and the version
    that was named first all others, so that predictions of two versions are not of one network.
    """
    if report.training is not None or not report.versions:
        return report.candidate
    return placer if placer in report.versions else next(iter(report.versions))


def _setting(report: EvaluationReport) -> str:
    """Devices and setting of the measurements, as they begin a note; empty where a report does not say."""
    if report.measured_on is None:
        return ""
    measured = MeasuredOn.from_json(report.measured_on)
    hosts = f", {measured.devices_per_host} per host" if measured.devices_per_host else ""
    setting = measured.setting
    return (
        f"{measured.num_devices} devices{hosts}, {setting.precision}, {setting.optimizer}, batch {setting.batch_size}; "
    )


def intervals_over(report: EvaluationReport) -> str:
    """What the intervals of a fixed model are over."""
    rounds = next((gain.num_repeats for gains in report.gains.values() for gain in gains.values()), 0)
    variants = len(report.task_names) - 1
    return f"{rounds} interleaved repeats" + (f", and over {variants} drifted variants of it" if variants > 1 else "")


def evaluation_table(report: EvaluationReport) -> Table:
    """The evaluation of a training: one row per placer, cheapest last."""
    if report.model is not None:
        return [
            {
                "placer": line.placer,
                "measured ms": milliseconds(line.overall_ms),
                "predicted ms": predicted(line.predicted_ms),
                f"{report.candidate} saves": gain_text(report.gain(report.candidate, line.placer)),
                "on variants": gain_text(report.variant_gain(report.candidate, line.placer)),
                "tables": "split" if report.splits_columns(line.placer) else "whole",
                "legal": "yes" if line.fits else "no",
                "place ms": f"{line.place_ms:.2f}",
            }
            for line in report.placers
        ]
    return [
        {
            "placer": line.placer,
            "measured ms": milliseconds(line.overall_ms),
            "predicted ms": predicted(line.predicted_ms),
            "gain over random": gain_text(report.gain(line.placer, "random")),
            f"gain over {report.reference}": gain_text(report.gain(line.placer, report.reference)),
            "tables": "split" if report.splits_columns(line.placer) else "whole",
            "legal": "yes" if line.fits else "no",
            "place ms": f"{line.place_ms:.2f}",
        }
        for line in report.placers
    ]


def comparison_table(report: EvaluationReport) -> Table:
    """A comparison of versions: one row per placer, cheapest last; gains are over the placer that was named first."""
    return [
        {
            "placer": line.placer,
            "measured ms": milliseconds(line.overall_ms),
            f"gain over {report.reference}": gain_text(report.gain(line.placer, report.reference)),
            **(
                {}
                if report.model is None
                else {"on variants": gain_text(report.variant_gain(line.placer, report.reference))}
            ),
            "prediction error": "-" if line.predicted_mape is None else f"{line.predicted_mape:.1%}",
            "rank correlation": "-" if line.predicted_spearman is None else f"{line.predicted_spearman:.3f}",
            "tables": "split" if report.splits_columns(line.placer) else "whole",
            "legal": "yes" if line.fits else "no",
            "place ms": f"{line.place_ms:.2f}",
        }
        for line in report.placers
    ]


def learnt_sentence(report: EvaluationReport) -> str:
    """What placers have learnt from, and what TorchRec's planner assumed; empty where there is nothing to say."""
    parts = []
    for placer, count in report.learnt_from.items():
        if placer == MEASURING:
            parts.append(f"{placer} measured {count} placements of its own")
        else:
            parts.append(f"{placer} learnt from {count} measured placements")
    if report.has_default_bandwidths:
        parts.append("TorchRec's planner assumed its default bandwidths, for those of this hardware are not known")
    return f"{'; '.join(parts)}." if parts else ""


def pairs_table(report: EvaluationReport) -> Table:
    """The gain of every placer over every other one."""
    names = [line.placer for line in report.placers]
    return [
        {"placer": name} | {f"over {other}": gain_text(report.gain(name, other)) for other in names} for name in names
    ]


def costs_by_task(report: EvaluationReport) -> Table:
    """Measured costs: one row per task, one column per placer."""
    costs = {(row.task, row.placer): milliseconds(row.overall_ms) for row in report.rows}
    names = [line.placer for line in report.placers]
    return [{"task": task} | {name: costs.get((task, name), "-") for name in names} for task in report.task_names]


def measured_rows(report: EvaluationReport) -> Table:
    """One row per placer and task; the cost of a placement that did not fit is infinite."""
    return [
        {
            "task": row.task,
            "placer": row.placer,
            "overall_ms": math.inf if row.overall_ms is None else row.overall_ms,
            "predicted_ms": row.predicted_ms,
            "predicted_by": None if row.predicted_ms is None else predicted_by(report, row.placer),
            "legal": row.fits,
            "place_ms": row.place_ms,
        }
        for row in report.rows
    ]


def summary_json(report: EvaluationReport) -> Table:
    """The evaluation of a training for programs: one entry per placer, cheapest last."""
    return [
        {
            "placer": line.placer,
            "overall_ms": line.overall_ms,
            "predicted_ms": line.predicted_ms,
            "over_random": _gain_json(report.gain(line.placer, "random")),
            "over_best_baseline": _gain_json(report.gain(line.placer, report.reference)),
            **({} if report.model is None else {"saved_by_candidate": _saved_json(report, line.placer)}),
            "splits_columns": report.splits_columns(line.placer),
            "legal": line.fits,
            "place_ms": line.place_ms,
        }
        for line in report.placers
    ]


def evaluation_metrics(report: EvaluationReport) -> Metrics:
    """Figures of the candidate under the names that every version has in MLflow."""
    candidate = report.placer(report.candidate)
    figures = {
        "eval_overall_ms": candidate.overall_ms,
        "eval_gain_over_random": _mean(report.gain(report.candidate, "random")),
        **_gain_metrics("eval_gain_over_best_baseline", report.gain(report.candidate, report.reference)),
        **_gain_metrics("eval_gain_over_torchrec", report.gains[report.candidate].get("torchrec_planner")),
        **_gain_metrics("eval_gain_on_variants", report.variant_gain(report.candidate, report.reference)),
        "eval_predicted_mape": candidate.predicted_mape,
        "eval_place_ms": candidate.place_ms,
    }
    return _known(figures)


def gains_over_champion(report: EvaluationReport) -> Metrics:
    """The candidate's gain over the champion on the same tasks, with its interval; empty without a measured champion."""
    gain = next((report.gain(report.candidate, name) for name in report.versions), None)
    return _known(_gain_metrics("gain_over_champion", gain))


def comparison_metrics(report: EvaluationReport, placer: str) -> Metrics:
    """Figures of one compared version in MLflow."""
    line = report.placer(placer)
    return _known(
        {
            "compared_overall_ms": line.overall_ms,
            "compared_place_ms": line.place_ms,
            "compared_predicted_mape": line.predicted_mape,
            "compared_predicted_spearman": line.predicted_spearman,
            **_gain_metrics("compared_gain_over_first", report.gain(placer, report.reference)),
        }
    )


def milliseconds(value: float | None) -> str:
    """A measured cost."""
    return "did not fit" if value is None else f"{value:.3f}"


def predicted(value: float | None) -> str:
    """A predicted cost; blank where nothing predicts it."""
    return "" if value is None else f"{value:.3f}"


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


def _gain_json(gain: PairedComparison | None) -> dict[str, Any] | None:
    if gain is None:
        return None
    figures = {"mean_gain": gain.mean_gain, "low": gain.low, "high": gain.high, "num_tasks": gain.num_tasks}
    return figures if gain.num_repeats is None else figures | {"num_repeats": gain.num_repeats}


def _saved_json(report: EvaluationReport, placer: str) -> dict[str, Any]:
    return {
        "on_model": _gain_json(report.gain(report.candidate, placer)),
        "on_variants": _gain_json(report.variant_gain(report.candidate, placer)),
    }


def _gain_metrics(name: str, gain: PairedComparison | None) -> dict[str, float | None]:
    if gain is None:
        return {}
    return {name: gain.mean_gain, f"{name}_low": gain.low, f"{name}_high": gain.high}


def _mean(gain: PairedComparison | None) -> float | None:
    return None if gain is None else gain.mean_gain


def _known(figures: Mapping[str, float | None]) -> Metrics:
    return {name: value for name, value in figures.items() if value is not None}
