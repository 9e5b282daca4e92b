"""Algorithm 1 to its end: measure, fit, improve, checkpoint, as many times as the recipe says.

`profile.py`, `train_cost.py` and `train_policy.py` are the three steps of one iteration on their own.
"""

from typing import Any

from flows.decisions.warm_start import WarmStart
from flows.forms.form import deployed
from flows.forms.options import StageOptions
from flows.reports import mlflow_tracking
from flows.runtime import run_locks
from flows.runtime.testbed_pool import TestbedReference
from flows.tasks import exchanges
from flows.tasks import training as steps
from flows.tasks.stage_inputs import open_for, stage
from storage.run_records import checkpoints
from storage.run_records.checkpoints import iteration_name
from storage.store import Store


def train_placer(store: Store, run: str, dataset: str, tasks: str, start: WarmStart, bench: TestbedReference) -> str:
    """All iterations that have no checkpoint yet; returns the training's key.

    The loop calls Prefect tasks, not flows: a Prefect task costs milliseconds, a flow more than a second.
    """
    with run_locks.training_lock(store, steps.training_key(dataset, tasks, start, bench)):
        exchanges.measure_exchanges(store, dataset, tasks, start, bench)
        training = steps.start_training(store, dataset, tasks, start, bench)
        for iteration in range(1, start.config.iterations + 1):
            if not checkpoints.is_complete(store, training, iteration):
                steps.measure_placements(store, training, iteration, dataset, tasks, bench)
                steps.fit_cost_network(store, training, iteration)
                steps.improve_policy(store, training, iteration, dataset, tasks)
            figures = checkpoints.figures(store, training, iteration_name(iteration))
            mlflow_tracking.log_iteration(store, run, iteration, figures)
    mlflow_tracking.log_effort(store, run, training)
    return training


@deployed("train")
def train(options: StageOptions) -> dict[str, Any]:
    """Cost samples -> cost network -> policy: all iterations that are left."""
    store = open_for(options)
    with stage(store, "train", options, progress="train") as inputs:
        training = train_placer(store, inputs.run, inputs.dataset, inputs.tasks, inputs.start, inputs.bench)
    history = checkpoints.history(store, training)
    return {
        "training": training,
        "checkpoints": str(checkpoints.folder(store, training)),
        "table": [{"iteration": step} | figures for step, figures in enumerate(history, start=1)],
    }
