"""One measuring step of Algorithm 1 on its own: the costs that the next training iteration learns from."""

from typing import Any

from flows.forms.form import deployed
from flows.forms.options import StageOptions
from flows.reports import mlflow_tracking
from flows.runtime import run_locks
from flows.tasks import exchanges
from flows.tasks import training as steps
from flows.tasks.stage_inputs import open_for, stage
from storage.run_records import checkpoints


@deployed("profile")
def profile(options: StageOptions) -> dict[str, Any]:
    """Policy of the last checkpoint -> placements -> cost samples in the lake."""
    store = open_for(options)
    with stage(store, "profile", options) as inputs:
        dataset, tasks, bench = inputs.dataset, inputs.tasks, inputs.bench
        with run_locks.training_lock(store, inputs.training):
            exchanges.measure_exchanges(store, dataset, tasks, inputs.start, bench)
            training = steps.start_training(store, dataset, tasks, inputs.start, bench)
            iteration = (checkpoints.last_iteration(store, training) or 0) + 1
            figures = steps.measure_placements(store, training, iteration, dataset, tasks, bench)
        mlflow_tracking.log_iteration(store, inputs.run, iteration, figures)
    return {"training": training, "iteration": iteration, "testbed": bench.identity} | figures
