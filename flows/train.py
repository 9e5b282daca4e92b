"""Algorithm 1 to its end: measure, fit, improve, checkpoint, as many times as the recipe says.

Prefect tasks pass the training's key and numbers of iterations, never tensors. An interrupted training continues from its
checkpoints.
"""

from typing import Any

from prefect import get_run_logger

from dreamshard.training import TRAINING_ALGORITHMS
from flows.forms.form import deployed
from flows.forms.options import StageOptions
from flows.profile import measure_exchanges, measure_placements, measured_samples, start_training
from flows.runtime.progress import report_progress
from flows.runtime.retries import retried_task
from flows.runtime.run_locks import training_lock
from flows.runtime.testbed_pool import freeing_gpus
from flows.stages import stage
from storage.mlflow_store.runs import Run
from storage.run_records import checkpoints, trainings
from storage.run_records.checkpoints import Metrics, iteration_name
from storage.store import Store, open_store


@deployed
def train(options: StageOptions) -> dict[str, Any]:
    """Cost samples -> cost network -> policy: all iterations that are left."""
    store = open_store()
    with stage(store, "train", options) as (run, training):
        train_placer(store, run, training)
    history = checkpoints.history(store, training)
    return {
        "training": training,
        "checkpoints": str(checkpoints.folder(store, training)),
        "table": [{"iteration": step} | figures for step, figures in enumerate(history, start=1)],
    }


def train_placer(store: Store, run: Run, key: str) -> int:
    """Run all iterations that have no checkpoint yet; returns the number of the last one.

    The loop calls Prefect tasks, not flows: a Prefect task costs milliseconds, a flow more than a second.
    """
    iterations = trainings.read(store, key).config.iterations
    with training_lock(store, key), freeing_gpus():
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


@retried_task("fit cost network")
def fit_cost_network(store: Store, key: str, iteration: int) -> Metrics:
    """Cost samples -> cost network; returns its loss, and its error on the new samples before they were fitted.

    After a warm start it is also fitted to the samples of the trainings before.
    """
    state, known = checkpoints.load(store, key, "measured"), measured_samples(store, key)
    drawn = [each for i in range(1, iteration + 1) for each in checkpoints.proposals(store, key, i)]
    earlier = trainings.earlier_samples(store, key)
    samples = [*earlier, *(known[each] for each in drawn)]
    fit = TRAINING_ALGORITHMS[state.config.algorithm].fit(state, samples)
    figures = {"cost_loss": fit.loss, "cost_heldout_mape": fit.heldout_mape}
    checkpoints.save(store, key, "fitted", state, checkpoints.figures(store, key, "measured") | figures)
    return figures


@retried_task("improve policy")
def improve_policy(store: Store, key: str, iteration: int) -> Metrics:
    """Cost network -> policy, without hardware; ends the iteration with its checkpoint and returns its figures."""
    training, state = trainings.read(store, key), checkpoints.load(store, key, "fitted")
    drawn = store.lake.read_tasks(training.dataset, "train", training.tasks)
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
