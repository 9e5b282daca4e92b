"""One policy step of Algorithm 1 on its own: completes the iteration that `profile` and `train_cost` began."""

from typing import Any

from flows.forms.form import deployed
from flows.forms.options import StageOptions
from flows.reports import mlflow_tracking
from flows.tasks import training as steps
from flows.tasks.stage_inputs import open_for, stage
from storage.run_records import checkpoints


@deployed("train-policy")
def train_policy(options: StageOptions) -> dict[str, Any]:
    """Cost network -> policy, without hardware; ends with the iteration's checkpoint."""
    store = open_for(options)
    with stage(store, "train-policy", options) as inputs:
        with inputs.next_iteration() as iteration:
            checkpoints.require(store, inputs.training, "fitted", "dreamshard profile, then the flow train-cost")
            figures = steps.improve_policy(store, inputs.training, iteration, inputs.dataset, inputs.tasks)
        mlflow_tracking.log_iteration(store, inputs.run, iteration, figures)
    return {"training": inputs.training, "iteration": iteration} | figures
