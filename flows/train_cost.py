"""One fitting step of Algorithm 1 on its own: the cost network learns from everything measured so far."""

from typing import Any

from flows.forms.form import deployed
from flows.forms.options import StageOptions
from flows.reports import mlflow_tracking
from flows.tasks import training as steps
from flows.tasks.stage_inputs import open_for, stage
from storage.run_records import checkpoints


@deployed("train-cost")
def train_cost(options: StageOptions) -> dict[str, Any]:
    """Cost samples of `profile` -> cost network."""
    store = open_for(options)
    with stage(store, "train-cost", options) as inputs:
        with inputs.next_iteration() as iteration:
            checkpoints.require(store, inputs.training, "measured", "dreamshard profile")
            figures = steps.fit_cost_network(store, inputs.training, iteration)
        mlflow_tracking.log_iteration(store, inputs.run, iteration, figures)
    return {"training": inputs.training, "iteration": iteration} | figures
