"""The Prefect tasks of the second half: evaluate, register, promote, and what MLflow is told on the way."""

from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from dreamshard.evaluation import PairedComparison
from dreamshard.recipes import EvaluationConfig
from flows import checkpoints, evaluations, objections, report, savings, tracking, turns
from flows.caching import ON_CONTENT_AND_FLOWS, content_key, flows_hash
from flows.contest import measured_rows
from flows.decision import Decision, decide
from flows.heldout import not_held_out_for
from flows.measuring import TestbedReference, lake, turn
from flows.progress import publish
from flows.retries import may_pass, measurement_failed

_BACKOFF = exponential_backoff(2)


@task(
    name="find the champion",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=_BACKOFF,
    retry_condition_fn=may_pass,
)
def champion_to_beat(training: str, iteration: int) -> str | None:
    """Version of the champion, unless there is none or it is what this very iteration of the training learnt."""
    version = tracking.champion()
    return None if version is None or tracking.came_from(version, training, iteration) else version


@task(
    name="evaluate placers",
    cache_policy=ON_CONTENT_AND_FLOWS,
    persist_result=True,
    result_serializer="json",
    retries=1,
    retry_delay_seconds=_BACKOFF,
    retry_condition_fn=measurement_failed,
)
def evaluate_placers(
    training: str,
    iteration: int,
    dataset: str,
    tasks: str,
    config: EvaluationConfig,
    testbed: TestbedReference,
    rival: str | None,
) -> str:
    """Held-out tasks x placers -> measured costs in the lake and a report; returns the report's key.

    Args:
        training: whose checkpoint at `iteration` is the candidate.
        rival: version of the champion in use, measured on the same tasks; None where there is none.

    Raises:
        NoPlacementError: a task fits no placement; before anything is measured.
        MeasurementError: a rank died or hung, twice.
    """
    key = content_key(training, iteration, dataset, tasks, config, testbed, rival, flows_hash())
    if evaluations.path(key).is_file():  # by another host of the store, whose cache is not this one's
        return key
    candidate = checkpoints.placer(training, iteration, config.budget_ms)
    heldout = lake().read_tasks(dataset, "test", tasks)
    champion, unusable = evaluations.champion_placer(rival)
    train = lake().read_tasks(dataset, "train", tasks) if config.peers else None
    contestants = evaluations.contestants(candidate, champion, rival, testbed.seed, train)
    with turn(testbed):
        rows = measured_rows(key, contestants, heldout, candidate.predict_overall_ms, config, testbed)
    versions = {} if rival is None else {evaluations.rival_name(rival): rival}
    lake().write_evaluation(
        rows, versions, key, dataset_version=dataset, testbed=testbed.kind, hardware=testbed.identity
    )
    made = evaluations.make_report(key, training, iteration, rows, rival, testbed.identity, rival_unusable=unusable)
    caveat = "" if rival is None else not_held_out_for(rival, heldout)
    facts = {"dataset": dataset, "tasks": tasks, "testbed_kind": testbed.kind, "caveat": caveat}
    evaluations.save(made | facts)
    if caveat:
        get_run_logger().warning("%s", caveat)
    if unusable:
        get_run_logger().warning("champion version %s counts as beaten: %s", rival, unusable)
    get_run_logger().info("evaluated %s on %s", ", ".join(contestants), ", ".join(drawn.name for drawn in heldout))
    publish("evaluate", 1, 1, f"{len(contestants)} placers on {len(heldout)} held-out tasks")
    return key


def evaluated(
    training: str,
    iteration: int,
    dataset: str,
    tasks: str,
    config: EvaluationConfig,
    testbed: TestbedReference,
    rival: str | None,
) -> str:
    """Evaluate, unless the same was evaluated before and its report is still there; returns the report's key."""
    asked = (training, iteration, dataset, tasks, config, testbed, rival)
    with turns.of_training(training):
        key = evaluate_placers(*asked)
        if not evaluations.path(key).is_file():  # the reports were removed, the cache was not
            key = evaluate_placers.with_options(refresh_cache=True)(*asked)
    evaluations.use(key)
    return key


@task(
    name="register version", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=_BACKOFF, retry_condition_fn=may_pass
)
def register(run: str, training: str, dataset: str, evaluation: str, budget_ms: float | None) -> str:
    """The candidate that was evaluated -> version in MLflow's registry, once per iteration; returns its number."""
    iteration = evaluations.load(evaluation)["iteration"]
    with turns.of_registry():
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
    with turns.of_registry():  # or two that both beat the same champion would both take its place
        in_use = tracking.champion()
        before = rival if rival and in_use == version else in_use
        decision = decide(
            rival, against_rival, baseline, gains[baseline], in_use=before, unusable=figures.get("rival_unusable", "")
        )
        if in_use == version:
            reason = decision.reason if rival else decision.reason.partition(": ")[2]
            decision = Decision(alias="champion", reason=f"already the champion: {reason}")
        else:
            objection = objections.against(version, in_use) if decision.alias == "champion" else ""
            if objection:
                decision = Decision(alias="challenger", reason=f"{objection}; its figures: {decision.reason}")
            tracking.set_alias(version, decision)
    get_run_logger().info("version %s is %s: %s", version, decision.alias, decision.reason)
    publish("promote", 1, 1, f"version {version} is {decision.alias}")
    outcome = {
        "version": version,
        "alias": decision.alias,
        "reason": decision.reason,
        "effort": savings.of(training).sentence,
        "testbed": figures["testbed"],
        "training": training,
        "evaluation": evaluation,
        "where": tracking.where(run, evaluation, training),
    }
    text = report.markdown_report(figures, checkpoints.history(training), decision.reason, outcome["where"])
    if in_use != version or not tracking.has_report(version):  # which an error after the alias leaves undone
        tracking.log_report(version, figures, text)
    report.publish_report(figures, text, decision.reason)
    return outcome


@task(name="make champion", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=_BACKOFF, retry_condition_fn=may_pass)
def make_champion(name: str, reason: str) -> dict[str, Any]:
    """A version or alias -> champion, whatever its figures; says what was champion and what it is now.

    Raises:
        ValueError: there is no such version, or it cannot place.
    """
    with turns.of_registry():
        outcome = tracking.make_champion(name, reason)
    get_run_logger().info(
        "champion was version %s, is version %s: %s", *map(outcome.get, ("former", "version", "reason"))
    )
    return outcome
