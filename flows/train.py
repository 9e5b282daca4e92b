"""Algorithm 1 to its end: measure, fit, improve, checkpoint, as many times as the recipe says.

Prefect tasks pass the training's key and numbers of iterations, never tensors. An interrupted training continues from its
checkpoints.
"""

from dataclasses import replace
from functools import partial
from itertools import chain
from math import isfinite
from statistics import fmean
from typing import Any

import torch
from prefect import get_run_logger

from dreamshard.cost_model.exchanges import ExchangeShape, exchanges_for
from dreamshard.costs import CostSample, Exchange, ExchangeSample, is_simulated, library_versions
from dreamshard.tables import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.rounds import MOST_ROUNDS, measure_in_rounds
from dreamshard.training import TRAINING_ALGORITHMS
from flows.forms.form import deployed
from flows.forms.options import StageOptions
from flows.runtime.run_locks import store_lock
from flows.runtime.tasks import report_progress, retried_task
from flows.runtime.testbed_pool import answering, freeing_gpus, measure, shared_testbed
from flows.stages import single_stage
from storage.mlflow_store import registry
from storage.mlflow_store.runs import Run
from storage.run_records import checkpoints, trainings
from storage.run_records.checkpoints import Metrics, iteration_name
from storage.run_records.trainings import TestbedReference
from storage.store import Store


@deployed
def train(options: StageOptions) -> dict[str, Any]:
    """Cost samples -> cost network -> policy: all iterations that are left."""
    with single_stage("train", options) as (store, run, training):
        train_placer(store, run, training)
    history = checkpoints.history(store, training)
    return {
        "training": training,
        "checkpoints": str(checkpoints.folder(store, training)),
        "table": [{"iteration": step} | figures for step, figures in enumerate(history, start=1)],
    }


@deployed
def profile(options: StageOptions) -> dict[str, Any]:
    """Policy of the last checkpoint -> placements -> cost samples in the lake."""
    with (
        single_stage("profile", options) as (store, run, training),
        store_lock(store, f"training-{training}"),
        freeing_gpus(),
    ):
        measure_exchanges(store, training)
        iteration = start_training(store, training) + 1
        figures = measure_placements(store, training, iteration)
        run.log_metrics(figures, iteration)
    testbed = trainings.read(store, training).testbed.identity
    return {"training": training, "iteration": iteration, "testbed": testbed} | figures


def train_placer(store: Store, run: Run, key: str) -> int:
    """Run all iterations that have no checkpoint yet; returns the number of the last one.

    The loop calls Prefect tasks, not flows: a Prefect task costs milliseconds, a flow more than a second.
    """
    iterations = trainings.read(store, key).config.iterations
    with store_lock(store, f"training-{key}"), freeing_gpus():
        measure_exchanges(store, key)
        start_training(store, key)
        for iteration in range(1, iterations + 1):
            if not checkpoints.is_complete(store, key, iteration):
                measure_placements(store, key, iteration)
                fit_cost_network(store, key, iteration)
                improve_policy(store, key, iteration)
            figures = checkpoints.figures(store, key, iteration_name(iteration))
            run.log_metrics(figures, iteration)
    return iterations


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
    drawn = trainings.tasks_of(store, training)
    known = known_exchanges(store, testbed)
    hosts = max((sample.host_devices for sample in known if sample.host_devices), default=None)

    def identity(exchange: Exchange) -> tuple[ExchangeShape, tuple[int, ...]]:
        shape = ExchangeShape.of(exchange.num_devices, exchange.devices_per_host, hosts)
        return shape, tuple(exchange.sent_bytes.tolist())

    have = {identity(sample.exchange) for sample in known}
    designed = exchanges_for(drawn, testbed.batch_size, testbed.exchange_devices)
    missing = [exchange for exchange in designed if identity(exchange) not in have]
    rounds: list[list[ExchangeSample]] = [[] for _ in missing]

    def measured(exchange: Exchange, number: int) -> ExchangeSample:
        with answering(store, testbed, f"an all-to-all of {exchange.num_devices} devices") as opened:
            sample = replace(opened.measure_exchange(exchange), round=number)
        report_progress("exchange", number, MOST_ROUNDS, f"rounds, {exchange.num_devices} devices")
        return sample

    try:
        order = torch.Generator().manual_seed(testbed.seed)
        each_measured = [partial(measured, exchange) for exchange in missing]
        measure_in_rounds(each_measured, rounds, order, are_compared=False)
    finally:
        store.lake.write_exchanges(testbed.links, list(chain.from_iterable(rounds)))
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
    drawn = trainings.tasks_of(store, training)
    proposals = TRAINING_ALGORITHMS[state.config.algorithm].propose(state, drawn)
    placements = [(placed.name, placement) for placed, placement in proposals]
    before = {named for i in range(1, iteration) for named in checkpoints.proposals(store, key, i)}
    distinct = dict(zip(placements, proposals, strict=True))
    group = [(*chosen, 0) for named, chosen in distinct.items() if named not in before]
    if not is_simulated(training.testbed.identity):
        group.append((*reference_placement(store, key, proposals[0]), iteration))
    order = torch.Generator().manual_seed(training.testbed.seed + iteration)
    with store.lake.collecting(key, iteration, training.dataset) as keep:
        kept = store.lake.read_rounds(key)

        def measured(placed: PlacementTask, placement: Placement, repeat: int, number: int) -> CostSample:
            sample = measure(store, training.testbed, placed, placement)
            sample = replace(sample, round=number, repeat=repeat, is_reference=repeat > 0)
            keep(sample)
            report_progress("measure", number * len(group), len(group) * MOST_ROUNDS, f"placements, {placed.name}")
            return sample

        known = [
            [s for s in kept if (s.task.name, s.placement, s.repeat) == (placed.name, placement, repeat)]
            for placed, placement, repeat in group
        ]
        measure_in_rounds([partial(measured, *args) for args in group], known, order, are_compared=False)
    report_progress("measure", 1, 1, "placements")
    samples = measured_samples(store, key)
    fitting = [cost for named in placements if isfinite(cost := samples[named].overall_ms)]
    if not fitting:
        raise ValueError(
            f"none of the {len(placements)} placements of iteration {iteration} fit the memory of "
            f"{training.testbed.identity}, so there is nothing to learn from; ask for more devices or less memory per device"
        )
    checkpoints.save_proposals(store, key, iteration, placements)
    figures: Metrics = {"measured_cost_ms": fmean(fitting)}
    checkpoints.save(store, key, "measured", state, figures)
    return figures


@retried_task("fit cost network")
def fit_cost_network(store: Store, key: str, iteration: int) -> Metrics:
    """Cost samples -> cost network; returns its loss, and its error on the new samples before they were fitted.

    After a warm start it is also fitted to the samples of the trainings before.
    """
    state, known = checkpoints.load(store, key, "measured"), measured_samples(store, key)
    drawn = [proposal for i in range(1, iteration + 1) for proposal in checkpoints.proposals(store, key, i)]
    earlier = trainings.earlier_samples(store, trainings.read(store, key))
    samples = [*earlier, *(known[proposal] for proposal in drawn)]
    fit = TRAINING_ALGORITHMS[state.config.algorithm].fit(state, samples)
    figures = {"cost_loss": fit.loss, "cost_heldout_mape": fit.heldout_mape}
    checkpoints.save(store, key, "fitted", state, checkpoints.figures(store, key, "measured") | figures)
    return figures


@retried_task("improve policy")
def improve_policy(store: Store, key: str, iteration: int) -> Metrics:
    """Cost network -> policy, without hardware; ends the iteration with its checkpoint and returns its figures."""
    training, state = trainings.read(store, key), checkpoints.load(store, key, "fitted")
    drawn = trainings.tasks_of(store, training)
    update = TRAINING_ALGORITHMS[state.config.algorithm].improve(state, drawn)
    learned = {"policy_loss": update.loss, "policy_reward": update.reward, "policy_entropy": update.entropy}
    figures = checkpoints.figures(store, key, "fitted") | learned
    checkpoints.save(store, key, iteration_name(iteration), state, figures)
    checkpoints.discard(store, key, "measured", "fitted")
    known = ", ".join(f"{name} {value:.4g}" for name, value in figures.items() if value is not None)
    get_run_logger().info("iteration %d: %s", iteration, known)
    done = f"iterations, placements cost {figures['measured_cost_ms']:.3f} ms"
    report_progress("train", iteration, state.config.iterations, done)
    return figures


def reference_placement(
    store: Store, key: str, first: tuple[PlacementTask, Placement] | None = None
) -> tuple[PlacementTask, Placement]:
    """The first placement of a training, which shows in each iteration and evaluation how steady the machine is.

    Args:
        first: of an iteration that is being measured, which is the training's if it is the first one.
    """
    if first is not None and checkpoints.last_iteration(store, key) == 0:
        return first
    training, (name, placement) = trainings.read(store, key), checkpoints.proposals(store, key, 1)[0]
    drawn = trainings.tasks_of(store, training)
    return next(task for task in drawn if task.name == name), placement


def measured_samples(store: Store, key: str) -> dict[tuple[str, Placement], CostSample]:
    """The cost samples of a training by the names of their tasks and their placements."""
    samples = store.lake.read_cost_samples(run_key=key)
    return {(sample.task.name, sample.placement): sample for sample in samples}
