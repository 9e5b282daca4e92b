"""Prefect tasks that register an evaluated candidate and choose the champion."""

import os
from dataclasses import replace
from typing import Any

from prefect import get_run_logger

from dreamshard.names import DEFAULT_ALGORITHM, Algorithm
from flows.decisions import standing
from flows.decisions.contestants import champion_name
from flows.decisions.promotion_decision import Decision, decide
from flows.decisions.promotion_veto import find_veto
from flows.reports import mlflow_tracking, report_pages, report_tables, written_links
from flows.runtime.progress import publish_progress
from flows.runtime.retries import retried_task
from flows.runtime.run_locks import registry_lock
from storage.mlflow_store import alias_changes, champions, registry
from storage.mlflow_store.standings import PROVISIONAL, topology_name
from storage.run_records import checkpoints, report_store, table_estimates, training_effort, version_table
from storage.run_records.report_store import IN_USE, EvaluationReport
from storage.store import Store


@retried_task("register version")
def register(store: Store, run: str, training: str, evaluation: str, budget_ms: float | None) -> str:
    """Evaluated candidate -> version in MLflow's registry, once per iteration; returns its number."""
    report = report_store.load(store.evaluations, evaluation)
    with registry_lock(store):
        tags = {"training": training, "iteration": report.iteration}
        version = registry.find_version(store.settings, tags)
        if version is None:
            version = mlflow_tracking.register(store, run, report, budget_ms)
        mlflow_tracking.complete(store, version, report)
        table_estimates.write_estimates(store, version, registry.version_tags(store.settings, version))
        version_table.write_versions(store)
    publish_progress("register", 1, 1, f"version {version}")
    return version


@retried_task("promote")
def promote(
    store: Store, run: str, version: str, training: str, evaluation: str, *, tryout: bool = False
) -> dict[str, Any]:
    """Evaluation report -> standing of the version in its topology, and the reason on it; returns the chain's outcome.

    Args:
        tryout: leave champion and challenger as they are.
    """
    report = report_store.load(store.evaluations, evaluation)
    with registry_lock(store):  # otherwise two versions that beat the same champion would both replace it
        topology = topology_name(registry.version_tags(store.settings, version))
        decision = _decide(store, report, version, champions.champion_of(store.settings, topology))
        place = (standing.tried_out if tryout else standing.settle)(store, version, decision)
        version_table.write_versions(store)
    note = f" ({place.note})" if place.note else ""
    get_run_logger().info("version %s is %s: %s%s", version, place.words, decision.reason, note)
    publish_progress("promote", 1, 1, f"version {version} is {place.words}")
    among = _among(store.settings.algorithm)
    links = written_links.addresses(store, run, evaluation, training)
    outcome = {
        "version": version,
        "alias": place.alias,
        "standing": place.words,
        "topology": topology,
        "reason": decision.reason,
        "note": "; ".join(filter(None, (place.note, among, _beside_plan_in_use(report)))),
        "effort": training_effort.read(store, training).sentence,
        "testbed": report.hardware,
        "measured_on": report.measured_on,
        "prediction_error": report.placer(report.candidate).predicted_mape,
        "is_predicted": report.is_predicted,
        "training": training,
        "evaluation": evaluation,
        "where": links,
    }
    history = checkpoints.history(store, training)
    page = report_pages.evaluation_page(report, history, f"{decision.reason}{note}", links)
    if not decision.already_champion or not mlflow_tracking.has_report(
        store, version
    ):  # an error may have prevented it
        mlflow_tracking.log_report(store, version, report, page)
    written_links.publish_links(store, run, version)
    report_pages.publish_evaluation(report, page, decision.reason)
    return outcome


def with_note(outcome: dict[str, Any], note: str) -> dict[str, Any]:
    """The outcome of `promote` with another note for people; an empty one changes nothing."""
    return outcome | {"note": "; ".join(filter(None, (outcome["note"], note)))}


@retried_task("make champion")
def make_champion(store: Store, name: str, reason: str) -> dict[str, Any]:
    """Version or alias -> champion, as `replace_champion` does."""
    change = replace_champion(store, name, reason)
    get_run_logger().info(
        "champion was version %s, is version %s: %s", change["former"], change["version"], change["reason"]
    )
    return change


def replace_champion(store: Store, name: str, reason: str) -> dict[str, Any]:
    """Make a version or alias champion regardless of its figures; returns the old and the new champion.

    Raises:
        ValueError: there is no such version, or it cannot place.
    """
    why = reason or "by hand"
    with registry_lock(store):
        change = alias_changes.make_champion(store.settings, name, why, by=os.environ.get("USER") or "unknown")
        version_table.write_versions(store)
    return {**vars(change), "alias": "champion", "reason": why}


def _among(algorithm: Algorithm) -> str:
    """Says of which algorithm's champions a version is one, where that is not the default's."""
    if algorithm == DEFAULT_ALGORITHM:
        return ""
    return f"it was compared with champions of {algorithm} only, and versions of other algorithms keep their standing"


def _beside_plan_in_use(report: EvaluationReport) -> str:
    """Says where the plan in use is cheaper than the version's; empty where it is not, or where none was measured."""
    gain = report.gain(report.candidate, IN_USE)
    if gain is None or gain.is_positive:
        return ""
    return (
        f"the plan in use is cheaper than its placement ({report_tables.gain_text(gain)}), so keep that plan; "
        "`dreamshard place --current` weighs moving from it"
    )


def _is_provisional(store: Store, version: str | None) -> bool:
    return version is not None and bool(registry.tags_by_version(store.settings).get(version, {}).get(PROVISIONAL))


def _decide(store: Store, report: EvaluationReport, version: str, in_use: str | None) -> Decision:
    rival, baseline = report.rival, report.reference
    decision = decide(
        rival,
        report.gain(report.candidate, champion_name(rival)) if rival else None,
        baseline,
        report.gains[report.candidate][baseline],
        in_use=rival if rival and in_use == version else in_use,
        unusable=report.rival_unusable,
        variants_of_rival=report.variant_gain(report.candidate, champion_name(rival)) if rival else None,
        variants_of_baseline=report.variant_gain(report.candidate, baseline),
        is_rival_provisional=_is_provisional(store, rival),
        splits_columns=report.splits_columns(report.candidate),
    )
    if in_use == version:
        return replace(decision, alias="champion", already_champion=True)
    error = report.placer(report.candidate).predicted_mape
    veto = find_veto(store, version, in_use, error) if decision.alias == "champion" else None
    return decision if veto is None else replace(decision, alias="challenger", veto=veto)
