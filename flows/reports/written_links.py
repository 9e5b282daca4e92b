"""Where everything is that a chain has written."""

from flows.reports.mlflow_tracking import PREFECT_RUN
from storage.mlflow_store import runs
from storage.run_records import checkpoints, report_store
from storage.store import Store


def addresses(store: Store, run: str, evaluation: str, training: str) -> dict[str, str]:
    """Addresses of everything that a chain has written, for people."""
    prefect_run = runs.tags(store.settings, run).get(PREFECT_RUN, "")
    return {
        "lake": str(store.settings.lake_root),
        "catalog": str(store.settings.catalog_path),
        "checkpoints": str(checkpoints.folder(store, training)),
        "evaluation": str(report_store.path(store.evaluations, evaluation)),
        "MLflow run": runs.run_address(store.settings, run),
        **({"Prefect run": prefect_run} if prefect_run.startswith("http") else {}),
    }
