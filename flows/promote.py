"""The newest placer of the home into the registry, champion if its evaluation says so; or any version, by hand."""

import os
from dataclasses import replace
from typing import Any

from prefect import get_run_logger

from dreamshard.training.config import DEFAULT_ALGORITHM, Algorithm
from flows.decisions import standing
from flows.decisions.contestants import champion_name
from flows.decisions.promotion_decision import Decision, decide
from flows.decisions.promotion_veto import find_veto
from flows.evaluate import champion_to_beat
from flows.forms.form import deployed
from flows.forms.options import PromoteOptions
from flows.reference import score_version
from flows.reports import mlflow_tracking, report_pages, report_tables, written_links
from flows.runtime.progress import report_progress
from flows.runtime.retries import retried_task
from flows.runtime.run_locks import registry_lock
from flows.stages import last_iteration, open_for, stage
from storage.mlflow_store import aliases, registry, versions
from storage.mlflow_store.registry import PROVISIONAL
from storage.mlflow_store.version_names import in_words
from storage.run_records import checkpoints, report_store, table_estimates, training_effort, trainings
from storage.run_records.report_store import IN_USE, EvaluationReport
from storage.store import Store, open_store


@deployed
def promote(options: PromoteOptions) -> dict[str, Any]:
    """Newest evaluation -> registered version -> alias champion or challenger; or the version named -> champion."""
    if options.version is not None:
        store = open_store().of(options.algorithm or DEFAULT_ALGORITHM)
        return make_champion(store, options.version, options.reason or "")
    store = open_for(options)
    with stage(store, "promote", options) as (_, parent, training):
        last = last_iteration(store, training)
        report = report_store.newest(store, training)
        report_store.require_iteration(report, last)
        rival = champion_to_beat(store, training, last)
        if rival != report.rival:
            raise ValueError(
                f"the champion of this hardware is now {rival}, but the evaluation compared with {report.rival}; run "
                "`dreamshard evaluate` again, then promote"
            )
        return register_and_decide(store, parent, training, report.key, tryout=options.no_promote)


def register_and_decide(
    store: Store, run: str, training: str, evaluation: str, *, tryout: bool = False, new_reference: bool = False
) -> dict[str, Any]:
    """Evaluated candidate -> version, its standing, its cost on reference tasks; returns the chain's outcome.

    Args:
        run: MLflow run of the chain.
        tryout: leave champion and challenger as they are.
        new_reference: draw other reference tasks.
    """
    made_of = trainings.read(store, training)
    version = register(store, run, training, evaluation, made_of.recipe.evaluation.budget_ms)
    outcome = decide_standing(store, run, version, training, evaluation, tryout=tryout)
    missing = score_version(store, run, version, made_of.recipe, made_of.testbed, anew=new_reference)
    return outcome | {"note": "; ".join(filter(None, (outcome["note"], missing)))}


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
        versions.write_versions(store.settings)
    report_progress("register", 1, 1, in_words(version))
    return version


@retried_task("promote")
def decide_standing(
    store: Store, run: str, version: str, training: str, evaluation: str, *, tryout: bool = False
) -> dict[str, Any]:
    """Evaluation report -> standing of the version in its topology, and the reason on it; returns the chain's outcome.

    Args:
        tryout: leave champion and challenger as they are.
    """
    report = report_store.load(store.evaluations, evaluation)
    with registry_lock(store):  # otherwise two versions that beat the same champion would both replace it
        line = registry.line_of(store.settings, version)
        decision = _decide(store, report, version, line.champion)
        place = (standing.tried_out if tryout else standing.settle)(store, version, decision)
        versions.write_versions(store.settings)
    note = f" ({place.note})" if place.note else ""
    get_run_logger().info("%s is %s: %s%s", in_words(version), place.words, decision.reason, note)
    report_progress("promote", 1, 1, f"{in_words(version)} is {place.words}")
    among = _among(store.settings.algorithm)
    links = written_links.addresses(store, run, evaluation, training)
    outcome = {
        "version": version,
        "alias": place.alias,
        "standing": place.words,
        "topology": str(line.topology),
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
        mlflow_tracking.log_report(store, version, report, page, f"{place.words}: {decision.reason}")
    report_pages.publish_evaluation(page, decision.reason)
    return outcome


@retried_task("make champion")
def make_champion(store: Store, name: str, reason: str) -> dict[str, Any]:
    """Version or alias -> champion, as `replace_champion` does."""
    change = replace_champion(store, name, reason)
    get_run_logger().info("champion was %s, is %s: %s", change["former"], change["version"], change["reason"])
    return change


def replace_champion(store: Store, name: str, reason: str) -> dict[str, Any]:
    """Make a version or alias champion regardless of its figures; returns the old and the new champion.

    Raises:
        ValueError: there is no such version, or it cannot place.
    """
    why = reason or "by hand"
    with registry_lock(store):
        change = aliases.make_champion(store.settings, name, why, by=os.environ.get("USER") or "unknown")
        versions.write_versions(store.settings)
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
    return version is not None and PROVISIONAL in registry.version_tags(store.settings, version)


def _decide(store: Store, report: EvaluationReport, version: str, in_use: str | None) -> Decision:
    rival, baseline = report.rival, report.reference
    decision = decide(
        rival,
        report.gain(report.candidate, champion_name(rival)) if rival else None,
        baseline,
        report.gains[report.candidate][baseline],
        in_use=rival if rival and in_use == version else in_use,
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
