"""Promotion: register the evaluated candidate, and decide which version is champion."""

from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from dreamshard.evaluation import PairedComparison
from flows.decisions import promotion_veto
from flows.decisions.promotion import Decision, decide
from flows.reports import evaluation_page, evaluations, tracking
from flows.runtime import locks
from flows.runtime.progress import publish
from flows.runtime.retries import may_pass
from storage.run_records import checkpoints, training_effort
from storage.store import open_store

_BACKOFF = exponential_backoff(2)


@task(
    name="register version", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=_BACKOFF, retry_condition_fn=may_pass
)
def register(run: str, training: str, dataset: str, evaluation: str, budget_ms: float | None) -> str:
    """The candidate that was evaluated -> version in MLflow's registry, once per iteration; returns its number."""
    iteration = evaluations.load(evaluation)["iteration"]
    with locks.of_registry():
        found = tracking.version_of(training, iteration)
        if found is None:
            found = tracking.register(run, training, iteration, dataset, evaluation, budget_ms)
        tracking.complete(found, iteration, evaluation)
    publish("register", 1, 1, f"version {found}")
    return found


@task(name="promote", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=_BACKOFF, retry_condition_fn=may_pass)
def promote(run: str, version: str, training: str, evaluation: str) -> dict[str, Any]:
    """Figures -> alias, with the why on the version; returns the chain's outcome."""
    figures = evaluations.load(evaluation)
    gains = {name: PairedComparison(**gain) for name, gain in figures["comparisons"].items()}
    rival, baseline = figures["rival"], figures["best_baseline"]
    against_rival = gains.get(evaluations.rival_name(rival)) if rival else None
    with locks.of_registry():  # or two that both beat the same champion would both take its place
        in_use = tracking.champion()
        before = rival if rival and in_use == version else in_use
        decision = decide(
            rival, against_rival, baseline, gains[baseline], in_use=before, unusable=figures.get("rival_unusable", "")
        )
        if in_use == version:
            reason = decision.reason if rival else decision.reason.partition(": ")[2]
            decision = Decision(alias="champion", reason=f"already the champion: {reason}")
        else:
            objection = promotion_veto.against(version, in_use) if decision.alias == "champion" else ""
            if objection:
                decision = Decision(alias="challenger", reason=f"{objection}; its figures: {decision.reason}")
            tracking.set_alias(version, decision)
    get_run_logger().info("version %s is %s: %s", version, decision.alias, decision.reason)
    publish("promote", 1, 1, f"version {version} is {decision.alias}")
    outcome = {
        "version": version,
        "alias": decision.alias,
        "reason": decision.reason,
        "effort": training_effort.read(open_store(), training).sentence,
        "testbed": figures["testbed"],
        "training": training,
        "evaluation": evaluation,
        "where": tracking.where(run, evaluation, training),
    }
    text = evaluation_page.markdown_report(
        figures, checkpoints.history(open_store(), training), decision.reason, outcome["where"]
    )
    if in_use != version or not tracking.has_report(version):  # which an error after the alias leaves undone
        tracking.log_report(version, figures, text)
    evaluation_page.publish_report(figures, text, decision.reason)
    return outcome


@task(name="make champion", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=_BACKOFF, retry_condition_fn=may_pass)
def make_champion(name: str, reason: str) -> dict[str, Any]:
    """A version or alias -> champion, whatever its figures; says what was champion and what it is now.

    Raises:
        ValueError: there is no such version, or it cannot place.
    """
    with locks.of_registry():
        outcome = tracking.make_champion(name, reason)
    get_run_logger().info(
        "champion was version %s, is version %s: %s", *map(outcome.get, ("former", "version", "reason"))
    )
    return outcome
