"""The experiment that all runs are in: opens as model training, and its files are where MLflow can keep them."""

import importlib.util

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_registered_artifact_repositories

from storage.settings import Settings

EXPERIMENT = "dreamshard"
"""Name of the experiment that all runs are in."""

MODEL_TRAINING = "workflowType=machine_learning"
"""Of the address of a page of MLflow: show it as model training, and not as generative AI, which is the default."""

_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""The same as a tag, which MLflow's lists of experiments read."""


def experiment_id(tracking: MlflowClient, settings: Settings) -> str:
    """MLflow's id of the experiment, which is created if there is none.

    Raises:
        ValueError: MLflow cannot keep files where they belong.
    """
    existing = tracking.get_experiment_by_name(EXPERIMENT)
    if existing is not None:
        return str(existing.experiment_id)
    location = None
    if not settings.tracking_uri.startswith("http"):  # a server chooses where its files go
        _check_artifacts(settings.artifact_root)
        location = f"{settings.artifact_root}/{EXPERIMENT}"
    try:
        return str(tracking.create_experiment(EXPERIMENT, artifact_location=location, tags=dict(_KIND)))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        return experiment_id(tracking, settings)  # another run has just created it


def _check_artifacts(root: str) -> None:
    """Check that MLflow can keep files at `root`, before an experiment points there for good.

    Raises:
        ValueError: MLflow does not know this kind of address, or a package is missing.
    """
    scheme = root.partition("://")[0]
    known = get_registered_artifact_repositories()
    if scheme not in known:
        raise ValueError(
            f"MLflow cannot keep its files at {root}, since it knows no {scheme}://, so no version could be registered; "
            f"set DREAMSHARD_ARTIFACTS to an address of one of {sorted(filter(None, known))}"
        )
    if scheme == "s3" and importlib.util.find_spec("boto3") is None:
        raise ValueError(
            f"MLflow's files belong at {root} but boto3 is not installed, so no version could be registered; "
            "pip install 'dreamshard[s3]'"
        )
