"""The newest placer into the registry, champion if its evaluation says so; and any version or plan, as a person says."""

import os
from dataclasses import replace
from typing import Any

from prefect import get_run_logger
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput

from flows.forms.form import deployed
from flows.forms.options import PromoteOptions, StageOptions
from flows.plan import replace_plan
from flows.reports import evaluation_report, mlflow_tracking
from flows.reports.pages import publish
from flows.rules.contestants import champion_name
from flows.rules.promotion import HIGHEST_ERROR, Decision, Gain, decide, find_veto, gain_text
from flows.runtime.run_locks import registry_lock
from flows.runtime.tasks import report_progress, retried_task
from flows.stages import last_iteration, stage
from storage.mlflow_store import registry
from storage.mlflow_store.registry import PROVISIONAL, Version
from storage.mlflow_store.runs import Run
from storage.run_records import report_store, trainings
from storage.run_records.report_store import CURRENT_PLAN, EvaluationReport
from storage.store import Store, open_store
from storage.version_names import in_words


class Approval(RunInput):
    """A person's answer."""

    approve: bool = True
    reason: str = ""


@deployed
def promote(options: PromoteOptions) -> dict[str, Any]:
    """A version -> champion, or a plan -> current, at once or when a person approves; also to roll back."""
    if options.ask:
        answer = suspend_flow_run(wait_for_input=Approval)
        options = options.model_copy(update={"reason": answer.reason or "approved in Prefect"})
        if not answer.approve:
            sentence = f"refused: {answer.reason}"
            publish(sentence, "promote", sentence)
            return {"sentence": sentence}
    return take_into_use(open_store(), options)


@deployed
def register(options: StageOptions) -> dict[str, Any]:
    """Newest evaluation -> registered version -> alias champion or challenger."""
    store = open_store()
    with stage(store, "register", options) as (run, training):
        last = last_iteration(store, training)
        report = report_store.newest(store, training)
        if report is None or report.iteration != last:
            raise ValueError(
                f"training {training} has not been evaluated at its last iteration, {last}; run `dreamshard evaluate`, "
                "then `register`"
            )
        return register_and_decide(store, run, training, report.key)


@retried_task("promote")
def register_and_decide(store: Store, run: Run, training: str, evaluation: str) -> dict[str, Any]:
    """Evaluated candidate -> version in MLflow's registry, its standing and report; returns the flow's outcome.

    Args:
        run: MLflow's of the flow.
    """
    report = report_store.load(store, evaluation)
    with registry_lock(store):  # otherwise two versions that beat the same champion would both replace it
        version = mlflow_tracking.register(store, run, report)
        decision = _decide(store, report, version)
        elsewhere = settle(store, version, decision)
        registry.write_versions(store)
    reason, standing = decision.reason, f"{decision.standing} of {version.model} on {version.made_of.topology}"
    report_progress("promote", 1, 1, f"{version} is {standing}")
    gain, cheaper = report.gain(report.candidate, CURRENT_PLAN), ""
    if gain is not None and not gain.is_positive:
        cheaper = (
            f"the current plan is cheaper than its placement ({gain_text(gain)}), so keep that plan; "
            "`dreamshard place --current` weighs moving from it"
        )
    note = "; ".join(filter(None, (elsewhere, cheaper)))
    sentence = f"{standing}: {reason}{note and f' ({note})'}"
    get_run_logger().info("%s is %s", version, sentence)
    links = mlflow_tracking.addresses(store, run, evaluation)
    # an error may have prevented the report of a champion
    if not decision.already_champion or not version.report:
        mlflow_tracking.log_report(store, version, report, sentence, links)
    publish(evaluation_report.page(report, sentence, links), f"report-{version.model}", reason)
    return {
        "version": version.uri,
        "alias": decision.alias,
        "standing": standing,
        "model": version.model,
        "topology": str(version.made_of.topology),
        "reason": reason,
        "note": note,
        "effort": trainings.effort_sentence(store, training),
        "prediction": evaluation_report.prediction_sentence(report),
        "training": training,
        "evaluation": evaluation,
        "where": links,
        **evaluation_report.outcome(report),
    }


def settle(store: Store, version: Version, decision: Decision) -> str:
    """Make the candidate what the decision says, of its model and topology; the caller holds the registry's lock.

    Returns:
        A note if the alias `champion` alone means a version of another topology; otherwise nothing.
    """
    provisional = decision.provisional
    if not decision.already_champion:
        registry.set_alias(store, version.uri, decision.alias, decision.reason, provisional=provisional)
    elif provisional != version.tags.get(PROVISIONAL, ""):
        registry.tag(store, version.uri, {PROVISIONAL: provisional or None})
    champion = registry.champion(store, version.model)
    if champion is None or champion.registered_model == version.registered_model:
        return ""
    return f"`champion` of {version.model} means {champion}; `dreamshard promote {version.uri}` makes it mean this one"


def take_into_use(store: Store, options: PromoteOptions) -> dict[str, Any]:
    """Make a version champion, or a plan current, regardless of figures; returns the old and the new one.

    Raises:
        ValueError: there is no such version or plan, neither or both are named, or the version cannot place.
    """
    why, by = options.reason or "no reason given", os.environ.get("USER") or "the deployment promote"
    if options.plan is not None and options.version is None and options.model is not None:
        return replace_plan(store, options.model, options.plan, why)
    if options.version is None or options.plan is not None:
        raise ValueError("name a version (3, previous), or a model's plan (--model ads --plan 3), one at a time")
    with registry_lock(store):
        change = registry.make_champion(store, options.version, why, by, options.model or "")
        registry.write_versions(store)
    undo = f"dreamshard promote {change['former']}" if change["former"] not in (None, change["version"]) else ""
    sentence = f"{in_words(change['version'])} is champion of {change['model']} on {change['topology']}: {why}"
    publish(sentence, "promote", sentence)
    return {**change, "sentence": sentence, "roll_back": undo}


def _decide(store: Store, report: EvaluationReport, version: Version) -> Decision:
    champion = registry.champion(store, version.registered_model)
    rival = None if report.rival is None else registry.find(store, report.rival)
    candidate, heuristic = report.candidate, report.reference
    is_champion = champion is not None and champion.uri == version.uri
    before = rival if is_champion else champion

    def gain(other: str, named: str, attempt: int = 0) -> Gain:
        return Gain(over=named, measured=report.gains[candidate][other], attempt=attempt)

    split = ", which keeps whole the tables that this version splits" if report.placer(candidate).is_split else ""
    decision = decide(
        gain(heuristic, f"{heuristic}, the best heuristic{split}"),
        gain(champion_name(rival), f"champion version {rival.number}", max(1, version.number - rival.number))
        if rival
        else None,
        rival=rival.number if rival else None,
        champion=before.number if before else None,
        is_rival_provisional=rival is not None and PROVISIONAL in rival.tags,
    )
    if is_champion:
        return replace(decision, alias="champion", already_champion=True)
    error = report.placer(candidate).predicted_mape
    if champion is None and error is not None and error > HIGHEST_ERROR:
        doubts = [decision.provisional or str(decision.gain), f"its predictions are {error:.0%} off"]
        decision = replace(decision, provisional="; ".join(doubts))
    veto = find_veto(version, champion, error) if decision.alias == "champion" else ""
    return replace(decision, alias="challenger", veto=veto) if veto else decision
