"""Prefect tasks of a training: start it, then measure, fit and improve once per iteration.

Prefect tasks pass references (dataset versions, keys, numbers of iterations), never tensors. A training that was
interrupted continues from its checkpoints.
"""

from math import isfinite
from statistics import fmean

from prefect import get_run_logger

from dreamshard.costs import CostSample
from dreamshard.recipes import Recipe
from dreamshard.training import TRAINING_ALGORITHMS
from flows.decisions.warm_start import WarmStart, find_warm_start
from flows.runtime.content_keys import content_key
from flows.runtime.progress import publish_progress, report_progress
from flows.runtime.retries import measuring_task, retried_task
from flows.runtime.testbed_pool import TestbedReference, measure
from flows.tasks import shard_costs
from flows.tasks.exchanges import known_exchanges
from storage.lake.sample_buffer import collecting
from storage.lake.table_splits import read_table_split
from storage.mlflow_store import registry
from storage.run_records import checkpoints, training_effort
from storage.run_records.checkpoints import Metrics, iteration_name
from storage.store import Store


@retried_task("find the start")
def find_start(
    store: Store, config: Recipe, dataset: str, testbed: TestbedReference, *, full: bool = False
) -> WarmStart:
    """Registry -> what training on a dataset starts from; see `find_warm_start`."""
    return find_warm_start(store, config, dataset, testbed, full=full)


@retried_task("start training")
def start_training(store: Store, dataset: str, tasks: str, start: WarmStart, testbed: TestbedReference) -> str:
    """Untrained networks, or those of the warm start -> first checkpoint, unless it exists; returns the training's key.

    The networks know all exchanges in the lake of this hardware.

    Raises:
        ValueError: the version to continue from cannot be read.
    """
    key = training_key(dataset, tasks, start, testbed)
    last = checkpoints.last_iteration(store, key)
    if last is None:
        exchanges, algorithm = known_exchanges(store, testbed), TRAINING_ALGORITHMS[start.config.algorithm]
        if start.warm is None:
            pool, _ = read_table_split(store.lake, tasks).divide(store.lake.read_dataset(dataset))
            state = algorithm.start(pool, start.config, testbed.seed, exchanges)
        else:
            base = registry.load_placer(start.warm.version, store.settings)
            state = algorithm.start_from(base, start.config, testbed.seed, exchanges)
        training_effort.begin(store, key, start.origin(dataset, tasks))
        checkpoints.save(store, key, iteration_name(0), state, {})
    get_run_logger().info("training %s starts %s; its last iteration is %d", key, start.reason.sentence, last or 0)
    return key


@measuring_task("measure placements")
def measure_placements(
    store: Store, training: str, iteration: int, dataset: str, tasks: str, testbed: TestbedReference
) -> Metrics:
    """Policy -> placements -> cost samples in the lake, each on disk at once; returns their mean cost.

    An interrupted run draws the same placements again, and does not measure those that it has measured.

    Raises:
        MeasurementError: a rank died or hung, twice; what was measured before is in the lake.
        ValueError: no placement fits the devices.
    """
    state = checkpoints.load(store, training, iteration_name(iteration - 1))
    proposals = TRAINING_ALGORITHMS[state.config.algorithm].propose(
        state, store.lake.read_tasks(dataset, "train", tasks)
    )
    costs: list[float] = []
    with (
        collecting(store.lake, training, iteration, dataset) as keep,
        training_effort.timed(store, training) as add_duration,
    ):
        shard_costs.measure_ahead(store, testbed, proposals)
        known = _measured(store, training)
        for task, placement in proposals:
            identity = _identity(task.name, placement.device.tolist())
            if identity not in known:
                known[identity] = measure(store, testbed, task, placement, add_duration)
                keep(known[identity])
            costs.append(known[identity].overall_ms)
            report_progress("measure", len(costs), len(proposals), task.name)
    fitting = [cost for cost in costs if isfinite(cost)]
    if not fitting:
        raise ValueError(
            f"none of the {len(costs)} placements of iteration {iteration} fit the memory of {testbed.identity}, so "
            'there is nothing to learn from; ask for more devices or less memory per device (`dreamshard sql "select '
            'asked_bytes, free_bytes from cost_samples"` shows how much was missing)'
        )
    names = sorted({task.name for task, _ in proposals})
    get_run_logger().info("iteration %d: measured %d placements of %s", iteration, len(costs), ", ".join(names))
    drawn = [(task.name, placement.device.tolist()) for task, placement in proposals]
    checkpoints.save_proposals(store, training, iteration, drawn)
    figures = {"measured_cost_ms": fmean(fitting)}
    checkpoints.save(store, training, "measured", state, figures)
    return figures


@retried_task("fit cost network")
def fit_cost_network(store: Store, training: str, iteration: int) -> Metrics:
    """Cost samples -> cost network; returns its loss, and its error on the new samples before they were fitted.

    After a warm start it is also fitted to the samples of the trainings before.

    Raises:
        TrainingDivergedError: the loss is not a number; the last checkpoint is intact.
    """
    state, known = checkpoints.load(store, training, "measured"), _measured(store, training)
    drawn = [each for i in range(1, iteration + 1) for each in checkpoints.proposals(store, training, i)]
    earlier = training_effort.earlier_samples(store, training)
    with training_effort.timed(store, training):
        fit = TRAINING_ALGORITHMS[state.config.algorithm].fit(
            state, [*earlier, *(known[_identity(*each)] for each in drawn)]
        )
    values = {
        "cost_loss": fit.loss,
        "cost_heldout_mape": fit.heldout_mape,
        "cost_heldout_spearman": fit.heldout_spearman,
    }
    figures = {name: value for name, value in values.items() if value is not None}
    checkpoints.save(store, training, "fitted", state, checkpoints.figures(store, training, "measured") | figures)
    get_run_logger().info(
        "iteration %d: cost network fitted to %d samples, %d of them earlier ones: %s",
        iteration,
        len(drawn) + len(earlier),
        len(earlier),
        figures,
    )
    return figures


@retried_task("improve policy")
def improve_policy(store: Store, training: str, iteration: int, dataset: str, tasks: str) -> Metrics:
    """Cost network -> policy, without hardware; ends the iteration with its checkpoint and returns its figures.

    Raises:
        TrainingDivergedError: the loss is not a number; the last checkpoint is intact.
    """
    state = checkpoints.load(store, training, "fitted")
    with training_effort.timed(store, training):
        update = TRAINING_ALGORITHMS[state.config.algorithm].improve(
            state, store.lake.read_tasks(dataset, "train", tasks)
        )
    own = {"policy_loss": update.loss, "policy_reward": update.reward, "policy_entropy": update.entropy}
    figures = checkpoints.figures(store, training, "fitted") | own
    checkpoints.save(store, training, iteration_name(iteration), state, figures)
    checkpoints.discard(store, training, "measured", "fitted")
    get_run_logger().info("iteration %d: %s", iteration, figures)
    publish_progress(
        "train", iteration, state.config.iterations, f"placements cost {figures['measured_cost_ms']:.3f} ms"
    )
    return figures


def training_key(dataset: str, tasks: str, start: WarmStart, testbed: TestbedReference) -> str:
    """The identity of a training: any other input, or another placer to continue from, is another training."""
    warm = start.warm
    continued = [] if warm is None else [warm.training, warm.iteration, *warm.trainings]
    return content_key(dataset, tasks, start.config, testbed, *continued)


def _measured(store: Store, training: str) -> dict[str, CostSample]:
    samples = store.lake.read_cost_samples(run_key=training)
    return {_identity(sample.task.name, sample.placement.device.tolist()): sample for sample in samples}


def _identity(task_name: str, device: list[int]) -> str:
    return f"{task_name}:{','.join(map(str, device))}"
