"""All Prefect tasks: read, call one library function, write.

Steps pass references: dataset versions, keys and numbers of iterations; never tensors. What a step computes is in the
library function it names; where it rests is in `storage`. Nothing is done twice: ingesting goes by the fingerprints of
tables (`ingest.py`), training by its checkpoints (`checkpoints.py`), evaluation by a cache (`caching.py`).
"""

from math import isfinite
from statistics import fmean

import torch
from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from dreamshard import training as algorithm
from dreamshard.costs import CostSample
from dreamshard.recipes import Recipe, TasksConfig
from dreamshard.tasks import EMPTY_SPLIT, sample_tasks, split_tables
from flows.decisions import warm_start
from flows.decisions.warm_start import Start
from flows.runtime.caching import content_key
from flows.runtime.progress import advance, publish
from flows.runtime.retries import may_pass, measurement_failed
from flows.runtime.testbed_pool import TestbedReference, measure, turn
from flows.tasks import shard_costs
from storage.lake import home_lake
from storage.lake.sample_buffer import collecting
from storage.lake.table_splits import read_table_split, write_table_split
from storage.run_records import checkpoints, lineage, training_effort
from storage.run_records.checkpoints import Metrics, iteration_name
from storage.store import open_store

_BACKOFF = exponential_backoff(2)


@task(
    name="find the start", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=_BACKOFF, retry_condition_fn=may_pass
)
def find_start(config: Recipe, dataset: str, bench: TestbedReference, *, full: bool = False) -> Start:
    """Registry -> what training on a dataset goes on from; see `starts.start_from`."""
    return warm_start.start_from(config, dataset, bench, full=full)


@task(
    name="draw tasks",
    cache_policy=NO_CACHE,  # costs less than looking it up; drawn again it is the same
    retries=2,
    retry_delay_seconds=_BACKOFF,
    retry_condition_fn=may_pass,
)
def draw_tasks(dataset: str, config: TasksConfig, seed: int, split_of: str | None = None) -> str:
    """Pool -> placement tasks of two disjoint halves in the lake; returns the key of both sets.

    Args:
        dataset: version of the pool.
        config: how many tasks, and their sizes.
        seed: of the draw.
        split_of: key of earlier task sets, in whose halves tables stay; by default the halves are drawn.

    Raises:
        ValueError: a task fits no placement; nothing has been measured by then.
    """
    generator, pool = torch.Generator().manual_seed(seed), home_lake().read_dataset(dataset)
    drawn_afresh = EMPTY_SPLIT.with_tables(*split_tables(pool, torch.Generator().manual_seed(seed)))
    earlier = EMPTY_SPLIT if split_of is None else read_table_split(home_lake(), split_of)
    train, test = split_tables(pool, generator, earlier)
    halves = earlier.with_tables(train, test)
    own = [] if halves == drawn_afresh else [sorted(halves.train), sorted(halves.test)]
    key = content_key(dataset, config, seed, *own)
    for split, half, count in (("train", train, config.num_train), ("test", test, config.num_test)):
        drawn = sample_tasks(
            half,
            count,
            config.tables_per_task,
            config.num_devices,
            config.memory_bytes,
            generator,
            precision=config.precision,
            optimizer=config.optimizer,
            name=split,
        )
        home_lake().write_tasks(drawn, dataset, split, key, seed)
    write_table_split(home_lake(), key, halves)
    publish("tasks", 1, 1, f"{config.num_train} to train on, {config.num_test} held out")
    return key


@task(
    name="start training", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=_BACKOFF, retry_condition_fn=may_pass
)
def start_training(dataset: str, tasks: str, start: Start, testbed: TestbedReference) -> str:
    """Untrained networks, or those to go on from, unless a run with the same inputs has begun; returns the training's key.

    Raises:
        ValueError: the version to go on from cannot be read.
    """
    key = training_key(dataset, tasks, start, testbed)
    last = checkpoints.last_iteration(open_store(), key)
    if last is None:
        if start.warm is None:
            pool, _ = read_table_split(home_lake(), tasks).divide(home_lake().read_dataset(dataset))
            state = algorithm.start_training(pool, start.config, testbed.seed)
        else:
            state = algorithm.continue_from(lineage.load(open_store(), start.warm), start.config, testbed.seed)
        training_effort.begin(open_store(), key, start.origin(dataset, tasks))
        checkpoints.save(open_store(), key, iteration_name(0), state, {})
    get_run_logger().info("training %s begins %s and goes on from iteration %d", key, start.why, last or 0)
    return key


@task(
    name="measure placements",
    cache_policy=NO_CACHE,
    retries=1,
    retry_delay_seconds=_BACKOFF,
    retry_condition_fn=measurement_failed,
)
def measure_placements(training: str, iteration: int, dataset: str, tasks: str, testbed: TestbedReference) -> Metrics:
    """Policy -> placements -> cost samples in the lake, each on disk as it comes; returns their mean cost.

    What an interrupted run has measured is not measured again: the placements drawn are the same.

    Raises:
        MeasurementError: a rank died or hung, twice; what was measured before is in the lake.
        ValueError: no placement fits the devices.
    """
    state = checkpoints.load(open_store(), training, iteration_name(iteration - 1))
    proposals = algorithm.propose(state, home_lake().read_tasks(dataset, "train", tasks))
    costs: list[float] = []
    with (
        turn(testbed),
        collecting(home_lake(), training, iteration, dataset) as keep,
        training_effort.timed(open_store(), training) as took,
    ):
        shard_costs.measure_ahead(testbed, proposals)
        known = _measured(training)
        for drawn, placement in proposals:
            identity = _identity(drawn.name, placement.device.tolist())
            if identity not in known:
                known[identity] = measure(testbed, drawn, placement, took)
                keep(known[identity])
            costs.append(known[identity].overall_ms)
            advance("measure", len(costs), len(proposals), drawn.name)
    fitting = [cost for cost in costs if isfinite(cost)]
    if not fitting:
        raise ValueError(
            f"none of the {len(costs)} placements of iteration {iteration} fit the memory of {testbed.identity}, so "
            'there is nothing to learn from; ask for more devices or less memory per device (`dreamshard sql "select '
            'asked_bytes, free_bytes from cost_samples"` says how much was missing)'
        )
    names = sorted({drawn.name for drawn, _ in proposals})
    get_run_logger().info("iteration %d: measured %d placements of %s", iteration, len(costs), ", ".join(names))
    checkpoints.save_proposals(
        open_store(), training, iteration, [(drawn.name, found.device.tolist()) for drawn, found in proposals]
    )
    figures = {"measured_cost_ms": fmean(fitting)}
    checkpoints.save(open_store(), training, "measured", state, figures)
    return figures


@task(
    name="fit cost network", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=_BACKOFF, retry_condition_fn=may_pass
)
def fit_cost_network(training: str, iteration: int) -> Metrics:
    """Cost samples -> cost network; returns its loss and its error on the new samples before they were fitted.

    Where training goes on from an earlier placer, what was measured for that one is fitted as well.

    Raises:
        TrainingDivergedError: the loss is not a number; the last checkpoint is intact.
    """
    state, known = checkpoints.load(open_store(), training, "measured"), _measured(training)
    drawn = [each for i in range(1, iteration + 1) for each in checkpoints.proposals(open_store(), training, i)]
    earlier = training_effort.earlier_samples(open_store(), training)
    with training_effort.timed(open_store(), training):
        fitted = algorithm.fit_costs(state, [*earlier, *(known[_identity(*each)] for each in drawn)])
    found = {
        "cost_loss": fitted.loss,
        "cost_heldout_mape": fitted.heldout_mape,
        "cost_heldout_spearman": fitted.heldout_spearman,
    }
    figures = {name: value for name, value in found.items() if value is not None}
    checkpoints.save(
        open_store(), training, "fitted", state, checkpoints.figures(open_store(), training, "measured") | figures
    )
    get_run_logger().info(
        "iteration %d: cost network on %d samples, %d of them earlier ones: %s",
        iteration,
        len(drawn) + len(earlier),
        len(earlier),
        figures,
    )
    return figures


@task(
    name="improve policy", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=_BACKOFF, retry_condition_fn=may_pass
)
def improve_policy(training: str, iteration: int, dataset: str, tasks: str) -> Metrics:
    """Cost network -> policy, without hardware; closes the iteration with its checkpoint and returns its figures.

    Raises:
        TrainingDivergedError: the loss is not a number; the last checkpoint is intact.
    """
    state = checkpoints.load(open_store(), training, "fitted")
    with training_effort.timed(open_store(), training):
        update = algorithm.improve_policy(state, home_lake().read_tasks(dataset, "train", tasks))
    own = {"policy_loss": update.loss, "policy_reward": update.reward, "policy_entropy": update.entropy}
    figures = checkpoints.figures(open_store(), training, "fitted") | own
    checkpoints.save(open_store(), training, iteration_name(iteration), state, figures)
    checkpoints.discard(open_store(), training, "measured", "fitted")
    get_run_logger().info("iteration %d: %s", iteration, figures)
    publish("train", iteration, state.config.iterations, f"{figures['measured_cost_ms']:.3f} ms measured")
    return figures


def training_key(dataset: str, tasks: str, start: Start, testbed: TestbedReference) -> str:
    """What a training run with these inputs is called; any other input, or another placer to go on from, is another run."""
    warm = start.warm
    goes_on_from = [] if warm is None else [warm.training, warm.iteration, *warm.trainings]
    return content_key(dataset, tasks, start.config, testbed, *goes_on_from)


def _measured(training: str) -> dict[str, CostSample]:
    samples = home_lake().read_cost_samples(run_key=training)
    return {_identity(sample.task.name, sample.placement.device.tolist()): sample for sample in samples}


def _identity(task_name: str, device: list[int]) -> str:
    return f"{task_name}:{','.join(map(str, device))}"
