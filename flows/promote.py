"""Versions: the newest placer registered, champion if its evaluation says so; any version or plan that a person chooses;
old versions, and files that none needs, removed."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prefect import get_run_logger
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput

from dreamshard.costs import MeasuredOn
from dreamshard.search import DreamShardPlacer
from flows.forms.form import deployed
from flows.forms.options import PromoteOptions, PromotionForm, PruneOptions, StageOptions
from flows.place import replace_plan
from flows.reports import evaluation_report, pages
from flows.rules.contestants import champion_name
from flows.rules.dataset_diff import diff_datasets
from flows.rules.promotion import HIGHEST_ERROR, Decision, Gain, decide, find_veto, gain_text
from flows.runtime.run_locks import registry_lock
from flows.runtime.tasks import announce, report_progress, retried_task
from flows.stages import last_iteration, single_stage
from storage import retention
from storage.mlflow_store import LONGEST, registry, runs
from storage.mlflow_store.registry import PROVISIONAL, Version
from storage.mlflow_store.runs import Run
from storage.run_records import checkpoints, report_store, trainings
from storage.run_records.report_store import CURRENT_PLAN, EvaluationReport
from storage.run_records.trainings import Training, in_words
from storage.store import Store, open_store

REPORT = "comparison_report.html"
"""The page on every version's run that shows the comparison by which it was decided on."""
CURVES = ("measured_cost_ms", "cost_loss", "policy_reward", "policy_entropy")
"""Metrics of each iteration on a version's run; the stage `train` below it has all."""
FACTS = {"source", "dataset_version", "hardware", "devices", "memory_gb", "batch_size", "recipe", "warm_from"}
"""Facts of a training that are parameters of its version's run."""


class Approval(RunInput):
    """A person's answer."""

    approve: bool = True
    reason: str = ""


@deployed
def promote(options: PromotionForm) -> dict[str, Any]:
    """A version -> champion, or a plan -> current, at once or when a person approves; also to roll back."""
    if options.ask:
        answer = suspend_flow_run(wait_for_input=Approval)
        options = options.model_copy(update={"reason": answer.reason or "approved in Prefect"})
        if not answer.approve:
            sentence = f"refused: {answer.reason}"
            pages.publish(sentence, "promote", sentence)
            return {"sentence": sentence}
    return take_into_use(open_store(), options)


@deployed
def register(options: StageOptions) -> dict[str, Any]:
    """Newest evaluation -> registered version -> alias champion or challenger."""
    with single_stage("register", options) as (store, run, training):
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
        version = register_candidate(store, run, report)
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
    links = addresses(store, run, evaluation)
    # an error may have prevented the report of a champion
    if not decision.already_champion or not version.report:
        log_report(store, version, report, sentence, links)
    pages.publish(evaluation_report.page(report, sentence, links), f"report-{version.model}", reason)
    return {
        "version": version.uri,
        "alias": decision.alias,
        "standing": standing,
        "model": version.model,
        "topology": str(version.made_of.topology),
        "reason": reason,
        "note": note,
        "effort": trainings.effort_sentence(store, training),
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
    pages.publish(sentence, "promote", sentence)
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


def register_candidate(store: Store, run: Run, report: EvaluationReport) -> Version:
    """Register the evaluated placer as the next version, unless that is done.

    MLflow's page that compares versions shows `run`, so the training's curves, what the version is made of, and the
    evaluation are logged there, all before there is a version.
    """
    training, iteration = str(report.training), int(report.iteration or 0)
    known = registry.versions(store)
    version = next((v for v in known if (v.training, v.iteration) == (training, iteration)), None)
    if version is None:
        for step, figures in enumerate(checkpoints.history(store, training)[:iteration], start=1):
            run.log_metrics({name: figures.get(name) for name in CURVES}, step)
        made_of = trainings.read(store, training)
        placer = checkpoints.placer(store, training, iteration)
        if isinstance(placer, DreamShardPlacer):  # AutoShard predicts forward and backward compute as one
            store.lake.write_estimates(placer, report.dataset, training, iteration)
        facts = _facts(store, made_of, placer.cost_network.measured_on, report)
        run.log_params(facts)
        run.log_table(evaluation_report.placers_table(report))
        run.log_tasks(report.task_names, report.tasks)
        pool = store.lake.read_dataset(report.dataset)
        run.log_tables(pool, made_of.source, report.dataset)
        uri = runs.register_placer(
            store,
            placer,
            run,
            made_of,
            metrics=evaluation_report.evaluation_metrics(report),
            step=iteration,
            tags={
                "training": training,
                "iteration": iteration,
                "evaluation": report.key,
                "dataset": report.dataset,
                "table_diff": facts["table_diff"],
            },
            pool=pool,
        )
        version = registry.find(store, uri)
    run.tracking.update_run(version.run, name=version.name)
    return version


def log_report(
    store: Store, version: Version, report: EvaluationReport, outcome: str, links: Mapping[str, str]
) -> None:
    """The report by which a version was decided on: a page on its run, and the description of both."""
    run = Run(store, version.run)
    run.tracking.log_text(run.id, pages.html_page(evaluation_report.page(report, outcome, links)), REPORT)
    links_of_mlflow = {
        "Comparison report": run.link(REPORT),
        "Version": f"#/models/{version.registered_model}/versions/{version.number}?{runs.MODEL_TRAINING}",
        **{name: link for name, link in links.items() if name == "Prefect run"},
    }
    about = evaluation_report.page(report, f"{version.name}; {outcome}", links_of_mlflow)
    run.tracking.set_tag(run.id, runs.DESCRIPTION, about[:LONGEST])
    registry.describe(store, version.uri, report=about)  # last: then all of it is there


def addresses(store: Store, run: Run, evaluation: str) -> dict[str, str]:
    """Addresses of the evaluation and the runs, for people."""
    prefect_run = run.data.tags.get(runs.PREFECT_RUN, "")
    return {
        "evaluation": str(report_store.path(store, evaluation)),
        "MLflow run": run.address,
        **({"Prefect run": prefect_run} if prefect_run.startswith("http") else {}),
    }


def _facts(store: Store, made_of: Training, measured: MeasuredOn | None, report: EvaluationReport) -> dict[str, Any]:
    """Parameters of a version's run, which MLflow compares: what versions of a model differ in."""
    warm, tables = made_of.warm, store.lake.read_dataset(made_of.dataset)
    others = (v for v in registry.versions(store) if v.training != report.training and v.model == made_of.model)
    before = next((v.made_of.dataset for v in others if not warm or v.uri == warm.version), None)
    earlier = store.lake.read_dataset(before) if before and store.lake.has_dataset(before) else None
    return {
        **{name: value for name, value in made_of.facts.items() if name in FACTS and value is not None},
        "libraries": "" if measured is None else ", ".join(map(" ".join, measured.versions.items())),
        "tables": len(tables),
        "table_diff": diff_datasets(earlier, tables).label,
        "iterations": report.iteration,
    }


@deployed
def prune(options: PruneOptions) -> dict[str, Any]:
    """Old versions, lookups, cost samples, checkpoints, reports -> a list of them; with `delete` they are removed."""
    return remove_old(open_store(), options)


@retried_task("remove old files")
def remove_old(store: Store, options: PruneOptions) -> dict[str, Any]:
    """Find old files that nothing needs, remove them if `delete` says so, and return how many and how large they are.

    Raises:
        ValueError: the registry or the lake cannot tell what is needed; nothing has been removed.
    """
    table = retention.prune(store, **options.model_dump())
    done = "removed" if options.delete else "would be removed (give `delete` to remove them)"
    sentence = (
        f"{table[-1]['files']} files, {table[-1]['bytes']} bytes, older than {options.older_than_days} days {done}"
    )
    announce(sentence)
    pages.publish(pages.markdown_table(table), "dreamshard-prune", sentence)
    return options.model_dump() | {"table": table}
