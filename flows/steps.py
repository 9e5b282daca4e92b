"""All Prefect tasks: read, call one library function, write.

Steps pass references: dataset versions, keys and numbers of iterations; never tensors. What a step computes is in the
library function it names; where it rests is in `storage`. Steps with `ON_CONTENT` are skipped when neither their
arguments nor the library changed; training goes by its checkpoints instead (`checkpoints.py`).
"""

from statistics import fmean
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.tasks import Task, exponential_backoff

from dreamshard.recipes import EvaluationConfig, Recipe, TasksConfig, WorkloadConfig
from dreamshard.tables import Tables, concatenate
from dreamshard.tasks import PlacementTask, sample_tasks, split_pool
from dreamshard.testbeds.base import MeasurementError
from dreamshard.training import TrainingConfig, fit_costs, improve_policy, propose, start_training
from dreamshard.workloads import dataset_version, open_workload, statistics
from flows import checkpoints, evaluations, measuring
from flows.caching import ON_CONTENT, content_key
from flows.checkpoints import Metrics, iteration_name
from flows.measuring import TestbedReference
from flows.progress import advance, publish
from storage.lake import Lake
from storage.settings import Settings


def measurement_failed(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Retry where fresh ranks can help; wrong input stays wrong."""
    return isinstance(state.result(raise_on_failure=False), MeasurementError)


@task(name="ingest tables", cache_policy=ON_CONTENT, persist_result=True, result_serializer="json")
def ingest_tables(workload: WorkloadConfig, file: str | None) -> str:
    """Source -> lookups and tables in the lake; returns the dataset version.

    Args:
        workload: which tables.
        file: hash of the source's bytes where it is a file, so that a changed file is read again.
    """
    lake, source = _lake(), open_workload(workload)
    parts: list[Tables] = []
    for table in source.tables():
        parts.append(statistics(table))
        lake.write_table_lookups(table)
        advance("ingest", len(parts), source.num_tables, table.name)
    tables = concatenate(parts)
    version = dataset_version(tables)
    lake.write_dataset(tables, version, workload.source)
    get_run_logger().info("ingested %d tables of %s as dataset %s", len(tables), workload.source, version)
    return version


@task(name="draw tasks", cache_policy=ON_CONTENT, persist_result=True, result_serializer="json")
def draw_tasks(dataset: str, config: TasksConfig, seed: int) -> str:
    """Pool -> placement tasks of two disjoint halves in the lake; returns the key of both sets.

    Raises:
        ValueError: a task fits no placement; nothing has been measured by then.
    """
    lake, key = _lake(), content_key(dataset, config, seed)
    halves = split_pool(lake.read_dataset(dataset), generator(seed))
    for split, pool, count in zip(("train", "test"), halves, (config.num_train, config.num_test), strict=True):
        lake.write_tasks(_sample(pool, config, count, split, seed), dataset, split, key)
    return key


@task(name="start training", cache_policy=NO_CACHE)
def start(dataset: str, tasks: str, config: TrainingConfig, testbed: TestbedReference, seed: int) -> str:
    """Untrained state, unless a run with the same inputs has begun; returns the training's key."""
    key = content_key(dataset, tasks, config, testbed, seed)
    if checkpoints.last_iteration(key) is None:
        pool = _train_pool(dataset, seed)
        checkpoints.save(key, iteration_name(0), start_training(pool, config, seed), {})
    else:
        get_run_logger().info("training %s goes on from iteration %d", key, checkpoints.last_iteration(key))
    return key


@task(
    name="measure placements",
    cache_policy=NO_CACHE,
    retries=1,
    retry_delay_seconds=exponential_backoff(2),
    retry_condition_fn=measurement_failed,
)
def measure_placements(training: str, dataset: str, tasks: str, testbed: TestbedReference) -> Metrics:
    """Policy -> placements -> cost samples in the lake, each as it comes; returns their mean cost.

    What an interrupted run has measured is not measured again: the placements drawn are the same.

    Raises:
        MeasurementError: a rank died or hung, twice.
    """
    lake, iteration = _lake(), next_iteration(training)
    state = checkpoints.load(training, iteration_name(iteration - 1))
    proposals = propose(state, lake.read_tasks(dataset, "train", tasks))
    known = _measured(lake, training)
    costs: list[float] = []
    for drawn, placement in proposals:
        key = _identity(drawn.name, placement.device.tolist())
        if key not in known:
            with measuring.borrowed(testbed) as bench:
                known[key] = bench.measure(drawn, placement)
            lake.append_cost_samples([known[key]], training, iteration)
        costs.append(known[key].overall_ms)
        advance("measure", len(costs), len(proposals), drawn.name)
    get_run_logger().info(
        "iteration %d: measured placements of %s", iteration, ", ".join(sorted({drawn.name for drawn, _ in proposals}))
    )
    checkpoints.save_proposals(training, iteration, [(drawn.name, p.device.tolist()) for drawn, p in proposals])
    checkpoints.save(training, "measured", state)
    return {"measured_cost_ms": fmean(costs)}


@task(name="fit cost network", cache_policy=NO_CACHE)
def fit_cost_network(training: str, dataset: str) -> Metrics:
    """Cost samples -> cost network; returns its loss and its error on the new samples before they were fitted.

    Raises:
        TrainingDivergedError: the loss is not a number; the last checkpoint is intact.
    """
    state = checkpoints.load(training, "measured")
    known = _measured(_lake(), training)
    rounds = range(1, state.iteration + 2)
    samples = [known[_identity(*drawn)] for i in rounds for drawn in checkpoints.proposals(training, i)]
    fitted = fit_costs(state, samples)
    figures = {
        "cost_loss": fitted.loss,
        "cost_heldout_mape": fitted.heldout_mape,
        "cost_heldout_spearman": fitted.heldout_spearman,
    }
    get_run_logger().info("cost network on %d samples of %d tables: %s", len(samples), _tables_in(samples), figures)
    checkpoints.save(training, "fitted", state)
    return {name: value for name, value in figures.items() if value is not None}


@task(name="improve policy", cache_policy=NO_CACHE)
def improve(training: str, dataset: str, tasks: str, figures: Metrics) -> int:
    """Cost network -> policy, without hardware; closes the iteration with its checkpoint and returns its number.

    Args:
        figures: of this iteration's other steps, kept with the checkpoint.

    Raises:
        TrainingDivergedError: the loss is not a number; the last checkpoint is intact.
    """
    state = checkpoints.load(training, "fitted")
    update = improve_policy(state, _lake().read_tasks(dataset, "train", tasks))
    own = {"policy_loss": update.loss, "policy_reward": update.reward, "policy_entropy": update.entropy}
    get_run_logger().info("iteration %d: policy %s", state.iteration, own)
    checkpoints.save(training, iteration_name(state.iteration), state, figures | own)
    publish("train", state.iteration, state.config.iterations, f"{figures['measured_cost_ms']:.3f} ms measured")
    return state.iteration


@task(
    name="evaluate placers",
    cache_policy=ON_CONTENT,
    persist_result=True,
    result_serializer="json",
    retries=1,
    retry_delay_seconds=exponential_backoff(2),
    retry_condition_fn=measurement_failed,
)
def evaluate_placers(
    training: str, dataset: str, tasks: str, config: EvaluationConfig, testbed: TestbedReference, rival: str | None
) -> str:
    """Held-out tasks x placers -> measured costs; returns the key of the report.

    Args:
        training: whose newest checkpoint is the candidate.
        rival: version of the champion in use, measured on the same tasks; None where there is none.

    Raises:
        ValueError: a task fits no placement; before anything is measured.
        MeasurementError: a rank died or hung, twice.
    """
    key = content_key(training, checkpoints.last_iteration(training), dataset, tasks, config, testbed, rival)
    lake, candidate = _lake(), checkpoints.placer(training, config)
    heldout = lake.read_tasks(dataset, "test", tasks)
    contestants = evaluations.contestants(candidate, rival, testbed.seed)
    total, done = config.repeats * len(contestants) * len(heldout), 0
    with measuring.borrowed(testbed) as bench:

        def measure(drawn: PlacementTask, placement: Placement) -> CostSample:
            nonlocal done
            sample = bench.measure(drawn, placement)
            done += 1
            advance("evaluate", done, total, drawn.name)
            return sample

        rows = evaluate(
            contestants,
            heldout,
            measure,
            predict_ms=candidate.predict_overall_ms,
            repeats=config.repeats,
            seed=testbed.seed,
        )
    evaluations.save(evaluations.make_report(key, rows, rival))
    lake.append_evaluations(rows, rival, key)
    get_run_logger().info("evaluated %s on %s", ", ".join(contestants), ", ".join(drawn.name for drawn in heldout))
    return key


def next_iteration(training: str) -> int:
    """The number of the iteration that comes after the last complete one.

    Raises:
        ValueError: the training has not been started.
    """
    last = checkpoints.last_iteration(training)
    if last is None:
        raise ValueError(f"training {training} has not been started, so there is nothing to go on from; run `dreamshard train`")
    return last + 1


def _measured(lake: Lake, training: str) -> dict[str, CostSample]:
    return {
        _identity(sample.task.name, sample.placement.device.tolist()): sample
        for sample in lake.read_cost_samples(training)
    }


def _identity(task_name: str, device: Sequence[int]) -> str:
    return f"{task_name}:{','.join(map(str, device))}"


def _lake() -> Lake:
    return Lake(Settings.load().lake_root)
