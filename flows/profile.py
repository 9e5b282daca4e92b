"""One measuring step of Algorithm 1: the costs that the next training iteration learns from."""

from math import isfinite
from statistics import fmean
from typing import Any

from prefect import get_run_logger

from dreamshard.cost_model.exchanges import ExchangeShape, exchanges_for
from dreamshard.costs import CostSample, Exchange, ExchangeSample
from dreamshard.testbeds.device import library_versions
from dreamshard.training import TRAINING_ALGORITHMS
from flows.forms.form import deployed
from flows.forms.options import StageOptions
from flows.runtime.progress import report_progress
from flows.runtime.retries import retried_task
from flows.runtime.run_locks import training_lock
from flows.runtime.testbed_pool import answering, measure, shared_testbed
from flows.stages import open_for, stage
from storage.lake.sample_buffer import collecting
from storage.mlflow_store import registry, runs
from storage.run_records import checkpoints, trainings
from storage.run_records.checkpoints import Metrics, iteration_name
from storage.run_records.trainings import TestbedReference
from storage.store import Store


@deployed
def profile(options: StageOptions) -> dict[str, Any]:
    """Policy of the last checkpoint -> placements -> cost samples in the lake."""
    store = open_for(options)
    with stage(store, "profile", options) as (run, _, training), training_lock(store, training):
        measure_exchanges(store, training)
        iteration = start_training(store, training) + 1
        figures = measure_placements(store, training, iteration)
        runs.log_metrics(store, run, figures, iteration)
    testbed = trainings.read(store, training).testbed.identity
    return {"training": training, "iteration": iteration, "testbed": testbed} | figures


@retried_task("measure exchanges")
def measure_exchanges(store: Store, key: str) -> int:
    """Tasks -> all-to-alls that the lake lacks of this hardware, measured; returns their number.

    A testbed that cannot measure them measures none, nor does a training whose network would not learn from them.

    Raises:
        MeasurementError: a rank died or hung each time; earlier measurements are in the lake.
        ValueError: the testbed has fewer devices than the exchanges asked for.
    """
    training = trainings.read(store, key)
    testbed = training.testbed
    if not TRAINING_ALGORITHMS[training.recipe.training.algorithm].uses_exchanges:
        return 0
    with shared_testbed(store, testbed) as opened:
        if opened.links is None:
            return 0
    drawn = store.lake.read_tasks(training.dataset, "train", training.tasks)
    known = known_exchanges(store, testbed)
    hosts = max((sample.host_devices for sample in known if sample.host_devices), default=None)

    def identity(exchange: Exchange) -> tuple[ExchangeShape, tuple[int, ...]]:
        shape = ExchangeShape.of(exchange.num_devices, exchange.devices_per_host, hosts)
        return shape, tuple(exchange.sent_bytes.tolist())

    measured = {identity(sample.exchange) for sample in known}
    designed = exchanges_for(drawn, testbed.batch_size, testbed.measure.exchange_devices)
    missing = [exchange for exchange in designed if identity(exchange) not in measured]
    samples: list[ExchangeSample] = []
    try:
        for exchange in missing:
            with answering(store, testbed, f"an all-to-all of {exchange.num_devices} devices") as opened:
                samples.append(opened.measure_exchange(exchange))
            report_progress("exchange", len(samples), len(missing), f"{exchange.num_devices} devices")
    finally:
        store.lake.write_exchanges(testbed.links, samples)
    get_run_logger().info("measured %d exchanges; %d were in the lake", len(missing), len(known))
    return len(missing)


def known_exchanges(store: Store, testbed: TestbedReference) -> list[ExchangeSample]:
    """All-to-alls in the lake of the testbed's links and the present versions of the libraries."""
    return store.lake.read_exchanges(testbed.links, library_versions())


@retried_task("start training")
def start_training(store: Store, key: str) -> int:
    """Untrained networks, or those of the warm start -> first checkpoint, unless it exists; returns the last iteration.

    The networks know all exchanges in the lake of this hardware.
    """
    training, last = trainings.read(store, key), checkpoints.last_iteration(store, key)
    if last is None:
        config, seed = training.config, training.testbed.seed
        exchanges, warm = known_exchanges(store, training.testbed), training.warm
        pool, _ = store.lake.read_table_split(training.tasks).divide(store.lake.read_dataset(training.dataset))
        base = None if warm is None else registry.load_placer(warm.version, store)
        state = TRAINING_ALGORITHMS[config.algorithm].start(pool, config, seed, exchanges, base)
        checkpoints.save(store, key, iteration_name(0), state, {})
    get_run_logger().info("training %s starts %s; its last iteration is %d", key, training.start, last or 0)
    return last or 0


@retried_task("measure placements")
def measure_placements(store: Store, key: str, iteration: int) -> Metrics:
    """Policy -> placements -> cost samples in the lake, each on disk at once; returns their mean cost.

    An interrupted run draws the same placements again, and does not measure those that it has measured.

    Raises:
        MeasurementError: a rank died or hung each time; earlier measurements are in the lake.
        ValueError: no placement fits the devices.
    """
    training = trainings.read(store, key)
    state = checkpoints.load(store, key, iteration_name(iteration - 1))
    drawn = store.lake.read_tasks(training.dataset, "train", training.tasks)
    proposals = TRAINING_ALGORITHMS[state.config.algorithm].propose(state, drawn)
    costs: list[float] = []
    with collecting(store.lake, key, iteration, training.dataset) as keep:
        known = measured_samples(store, key)
        for placed, placement in proposals:
            identity = sample_identity(placed.name, placement.device.tolist())
            if identity not in known:
                known[identity] = measure(store, training.testbed, placed, placement)
                keep(known[identity])
            costs.append(known[identity].overall_ms)
            report_progress("measure", len(costs), len(proposals), placed.name)
    fitting = [cost for cost in costs if isfinite(cost)]
    if not fitting:
        raise ValueError(
            f"none of the {len(costs)} placements of iteration {iteration} fit the memory of {training.testbed.identity}, so "
            "there is nothing to learn from; ask for more devices or less memory per device"
        )
    placements = [(placed.name, placement.device.tolist()) for placed, placement in proposals]
    checkpoints.save_proposals(store, key, iteration, placements)
    figures = {"measured_cost_ms": fmean(fitting)}
    checkpoints.save(store, key, "measured", state, figures)
    return figures


def measured_samples(store: Store, key: str) -> dict[str, CostSample]:
    """The cost samples of a training by their identity."""
    samples = store.lake.read_cost_samples(run_key=key)
    return {sample_identity(sample.task.name, sample.placement.device.tolist()): sample for sample in samples}


def sample_identity(task_name: str, device: list[int]) -> str:
    """Names a placement of a task within a training."""
    return f"{task_name}:{','.join(map(str, device))}"
