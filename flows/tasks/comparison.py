"""The Prefect tasks of a comparison: held-out tasks for all, measured placers, what MLflow and Prefect show of it."""

from collections.abc import Mapping
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from dreamshard.recipes import EvaluationConfig, TasksConfig
from dreamshard.search import DreamShardPlacer
from flows.decisions import heldout
from flows.reports import comparison_page, comparisons, tracking
from flows.runtime.caching import content_key, flows_hash
from flows.runtime.progress import publish
from flows.runtime.retries import may_pass, measurement_failed
from flows.runtime.testbed_pool import TestbedReference, turn
from flows.tasks.measured_rows import measured_rows
from storage.lake import home_lake

_BACKOFF = exponential_backoff(2)


@task(
    name="draw tasks held out for all",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=_BACKOFF,
    retry_condition_fn=may_pass,
)
def draw_heldout(dataset: str, config: TasksConfig, seed: int, versions: list[str]) -> str:
    """Tables that none of the versions was trained on -> tasks in the lake; returns their key.

    Raises:
        ValueError: too few tables are held out for all of them.
    """
    return heldout.draw(dataset, config, seed, versions)


@task(
    name="compare placers",
    cache_policy=NO_CACHE,
    retries=1,
    retry_delay_seconds=_BACKOFF,
    retry_condition_fn=measurement_failed,
)
def compare_placers(
    who: dict[str, str | None], dataset: str, tasks: str, config: EvaluationConfig, testbed: TestbedReference
) -> str:
    """Held-out tasks x placers -> measured costs in the lake and a report; returns its key, measured once only.

    Args:
        who: version of each placer, or None; see `comparisons.resolve`.

    Raises:
        NoPlacementError: a task fits no placement; before anything is measured.
        MeasurementError: a rank died or hung, twice.
    """
    key = content_key("compare", comparisons.identities(who), dataset, tasks, config, testbed, flows_hash())
    if comparisons.path(key).exists():
        return key
    drawn = home_lake().read_tasks(dataset, "test", tasks)
    train = home_lake().read_tasks(dataset, "train", tasks) if config.peers or {"rnn", "autoshard"} & set(who) else []
    placers = comparisons.placers(who, train, testbed.seed)
    base = next(placer for placer in placers.values() if isinstance(placer, DreamShardPlacer))
    with turn(testbed):
        rows = measured_rows(key, placers, drawn, base.predict_overall_ms, config, testbed)
    rows = comparisons.with_own_predictions(rows, placers)
    versions = {name: version for name, version in who.items() if version is not None}
    home_lake().write_evaluation(
        rows, versions, key, dataset_version=dataset, testbed=testbed.kind, hardware=testbed.identity
    )
    unseen = heldout.split(dataset, list(versions.values()))[1]
    facts = {
        "testbed": testbed.identity,
        "testbed_kind": testbed.kind,
        "dataset": dataset,
        "tasks": tasks,
        "heldout": {"tasks": [each.name for each in drawn], "tables": len(unseen)},
    }
    comparisons.save(comparisons.make_report(key, rows, who, placers, facts))
    get_run_logger().info("compared %s on %d tasks held out for all", ", ".join(who), len(drawn))
    publish("evaluate", 1, 1, f"{len(who)} placers on {len(drawn)} tasks held out for all")
    return key


@task(
    name="show comparison", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=_BACKOFF, retry_condition_fn=may_pass
)
def show(run: str, comparison: str) -> Mapping[str, Any]:
    """Report -> MLflow (figures of each version, evaluation dataset, page) and an artifact; returns what is shown."""
    report = comparisons.load(comparison)
    page = tracking.log_comparison(run, report)
    comparison_page.publish(report)
    return {
        "comparison": comparison,
        "testbed": report["testbed"],
        "held_out": comparison_page.heldout_sentence(report),
        "report": str(comparisons.path(comparison)),
        "page": page,
    }
