"""Looks at a source of tables every 15 minutes, and starts a retraining when they changed enough.

Prefect starts each retraining once: the same tables and options have the same idempotency key for a day.
"""

import json
from dataclasses import asdict
from datetime import UTC, date, datetime
from typing import Any

from prefect.deployments import run_deployment
from prefect.runtime import deployment
from prefect.settings import get_current_settings

from dreamshard.recipes import with_batch_size
from dreamshard.testbeds.base import Capacity
from flows.forms.configuration import configure
from flows.forms.form import deployed
from flows.forms.options import RetrainingOptions, WatchOptions
from flows.ingest import ingest_workload
from flows.reports.pages import markdown_table, publish
from flows.rules.dataset_diff import DatasetDiff, DriftThresholds, diff_datasets
from flows.rules.warm_start import last_trained, version_in_use
from flows.stages import with_sizes
from storage.mlflow_store.registry import Version
from storage.run_records.trainings import named_model
from storage.store import open_store

SHOWN = 100
"""Largest number of changed tables in the artifact and the outcome."""

_BUNDLED = (
    "The recipe's own tables never change, so nothing is started; give your own with `dreamshard up --source`, or in the "
    "form's field Source."
)


@deployed
def watch(options: WatchOptions) -> dict[str, Any]:
    """Source -> what changed since the last training -> a retraining if it matters."""
    config, store = with_batch_size(configure(options)), open_store()
    ingested = ingest_workload(store, config.workload, lookups=False)
    dataset, config = ingested.dataset, with_sizes(config, ingested.tables, Capacity(kind="unknown"))
    trained = last_trained(store, config, dataset)
    before = store.lake.read_dataset(trained) if trained and store.lake.has_dataset(trained) else None
    limits = DriftThresholds(pooling=options.pooling_drift, reuse=options.reuse_drift, share=options.changed_share)
    diff = diff_datasets(before, ingested.tables, limits)
    started, link, retraining = None, "", "Nothing needs to be trained."
    if diff.matters and options.source is None:
        retraining = _BUNDLED
    elif diff.matters and options.start:
        started, state, link = start_retraining(options, dataset, named_model(config), diff.label)
        retraining = f"Retraining {started} is {state}."
    elif diff.matters:
        filled = ", ".join(f"{name} {value}" for name, value in options.given().items())
        retraining = f"Retraining is due: {filled}."
    in_use = version_in_use(store, config)
    outcome = {
        "dataset": dataset,
        "trained": trained,
        "source": config.workload.source,
        "retraining": retraining,
        "started": started,
        "in_use": "No version is in use yet." if in_use is None else in_use_sentence(in_use),
        "sentence": diff.sentence,
        "matters": diff.matters,
        "tables_before": diff.num_before,
        "tables_after": diff.num_after,
        **diff.counts,
        "changes": [asdict(change) for change in diff.changes[:SHOWN]],
    }
    table = [change.row() for change in diff.changes[:SHOWN]]
    publish(page(diff, outcome, link, table), f"tables-{named_model(config)}", diff.sentence)
    return {**outcome, "table": table}


def in_use_sentence(version: Version) -> str:
    """The version in use, for people."""
    note = f" It is {version.provisional}." if version.provisional else ""
    return f"{version} is in use since {version.tags['decided_at']} ({version.made_of.topology}).{note}"


def start_retraining(options: WatchOptions, dataset: str, model: str, changes: str) -> tuple[str, str, str]:
    """Start the model's retraining, unless the same was started today; returns the run's name, state and page."""
    key, name = retraining_key(options, dataset, datetime.now(UTC).date()), f"{model} {changes}".strip()
    values = options.model_dump(exclude_none=True, include=set(RetrainingOptions.model_fields))
    where = f"retrain/{deployment.name}"
    run: Any = run_deployment(where, parameters=values, timeout=0, idempotency_key=key, flow_run_name=name)
    return run.name, str(run.state_name).lower(), f"{get_current_settings().ui_url}/runs/flow-run/{run.id}"


def retraining_key(options: WatchOptions, dataset: str, day: date) -> str:
    """The identity of a retraining: of the same tables and options, one is started a day."""
    return f"{dataset} {json.dumps(options.given(), sort_keys=True)} {day}"


def page(diff: DatasetDiff, outcome: dict[str, Any], link: str, table: list[dict[str, str]]) -> str:
    """The difference as Markdown."""
    num_hidden = len(diff.changes) - len(table)
    parts = [
        f"# {outcome['source']}",
        f"**{diff.sentence}**",
        f"Dataset {outcome['dataset']}, last trained on {outcome['trained'] or 'none'}.",
        f"[{outcome['retraining']}]({link})" if link else outcome["retraining"],
        outcome["in_use"],
        markdown_table(table),
        f"... and {num_hidden} more" if num_hidden else "",
    ]
    return "\n\n".join(filter(None, parts))
