"""Where everything is that a chain has written: links on Prefect's pages, addresses for people."""

from prefect.artifacts import create_link_artifact
from prefect.context import FlowRunContext

from dreamshard.files.text import without_passwords
from flows.reports.mlflow_tracking import PREFECT_RUN, REPORT
from storage.mlflow_store import registry, runs
from storage.run_records import checkpoints, report_store
from storage.store import Store


def publish_links(store: Store, run: str, version: str) -> None:
    """MLflow's pages of the run, the version and its report as artifacts of this flow run.

    Does nothing outside of one, or without a server of MLflow.
    """
    settings = store.settings
    if FlowRunContext.get() is None or not settings.tracking_uri.startswith("http"):
        return
    server, name = (
        without_passwords(settings.tracking_uri).rstrip("/"),
        registry.version_tags(settings, version).get("name"),
    )
    report = runs.artifact_link(settings, registry.run_of(settings, version), f"{REPORT}.html")
    links = {
        "dreamshard-mlflow-run": (runs.run_address(settings, run), "MLflow run"),
        "dreamshard-mlflow-version": (f"{server}/{registry.version_link(version)}", name or f"version {version}"),
        "dreamshard-mlflow-report": (f"{server}/{report}", "Report in MLflow"),
    }
    for key, (link, text) in links.items():
        create_link_artifact(link, text, key=key, description=f"[{text}]({link})")


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
