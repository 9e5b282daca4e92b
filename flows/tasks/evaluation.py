"""Evaluation: measure every placer on held-out tasks and write the report."""

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from dreamshard.recipes import EvaluationConfig
from flows.decisions.heldout import not_held_out_for
from flows.reports import evaluations, tracking
from flows.runtime import locks
from flows.runtime.caching import ON_CONTENT_AND_FLOWS, content_key, flows_hash
from flows.runtime.progress import publish
from flows.runtime.retries import may_pass, measurement_failed
from flows.runtime.testbed_pool import TestbedReference, turn
from flows.tasks.measured_rows import measured_rows
from storage.lake import home_lake
from storage.run_records import checkpoints
from storage.store import open_store

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
    candidate = checkpoints.placer(open_store(), training, iteration, config.budget_ms)
    heldout = home_lake().read_tasks(dataset, "test", tasks)
    champion, unusable = evaluations.champion_placer(rival)
    train = home_lake().read_tasks(dataset, "train", tasks) if config.peers else None
    contestants = evaluations.contestants(candidate, champion, rival, testbed.seed, train)
    with turn(testbed):
        rows = measured_rows(key, contestants, heldout, candidate.predict_overall_ms, config, testbed)
    versions = {} if rival is None else {evaluations.rival_name(rival): rival}
    home_lake().write_evaluation(
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
    with locks.of_training(training):
        key = evaluate_placers(*asked)
        if not evaluations.path(key).is_file():  # the reports were removed, the cache was not
            key = evaluate_placers.with_options(refresh_cache=True)(*asked)
    evaluations.use(key)
    return key
