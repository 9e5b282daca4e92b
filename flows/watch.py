"""Looks every 15 minutes for changed tables and new profiles of the job; starts a retraining or learns from the profiles.

Prefect starts each once: the same tables and options have the same idempotency key for a day, the same profiles for good.
"""

import json
from datetime import UTC, date, datetime
from typing import Any

from prefect.deployments import run_deployment
from prefect.runtime import deployment
from prefect.settings import get_current_settings

from dreamshard.files import json_digest
from dreamshard.recipes import sized
from dreamshard.testbeds.base import Capacity
from flows.forms.form import deployed
from flows.forms.options import RetrainingOptions, WatchOptions
from flows.ingest import ingest_workload
from flows.learn import profiles_in
from flows.reports.pages import markdown_table, publish
from flows.rules.dataset_diff import DatasetDiff, diff_datasets
from flows.rules.warm_start import champion_of, last_trained, opened
from storage.mlflow_store.registry import Version
from storage.run_records.trainings import named_model, source_label

SHOWN = 100
"""Largest number of changed tables in the artifact and the outcome."""
PROFILES = 10
"""Largest number of profiles to learn from, the newest ones."""

_BUNDLED = (
    "The recipe's own tables never change, so nothing is started; give your own with `dreamshard up --source`, or in the "
    "form's field Source."
)


@deployed
def watch(options: WatchOptions) -> dict[str, Any]:
    """Changes of the source since the last training -> a retraining if they matter; new profiles -> `learn`."""
    config, store = opened(options)
    ingested = ingest_workload(store, config.workload, lookups=False)
    dataset, (config, _) = ingested.dataset, sized(config, ingested.tables, Capacity(kind="unknown"))
    trained = last_trained(store, config, dataset)
    before = store.lake.read_dataset(trained) if trained and store.lake.has_dataset(trained) else None
    diff = diff_datasets(
        before, ingested.tables, pooling=options.pooling_drift, reuse=options.reuse_drift, share=options.changed_share
    )
    started, link, retraining = None, "", "Nothing needs to be trained."
    if diff.matters and options.source is None:
        retraining = _BUNDLED
    elif diff.matters and options.start:
        values = options.model_dump(exclude_none=True, include=set(RetrainingOptions.model_fields))
        key = retraining_key(options, dataset, datetime.now(UTC).date())
        started, state, link = start("retrain", values, key, f"{named_model(config)} {diff.label}".strip())
        retraining = f"Retraining {started} is {state}."
    elif diff.matters:
        filled = ", ".join(f"{name} {value}" for name, value in options.given().items())
        retraining = f"Retraining is due: {filled}."
    champion = champion_of(store, config)
    outcome = {
        "dataset": dataset,
        "trained": trained,
        "source": config.workload.source,
        "retraining": retraining,
        "started": started,
        "learning": learn_from_new(options, named_model(config)) if options.profiles else "",
        "champion": "No version is in use yet." if champion is None else champion_sentence(champion),
        "sentence": diff.sentence,
        "matters": diff.matters,
        "tables_before": diff.num_before,
        "tables_after": diff.num_after,
        **diff.counts,
        "table": [change.row() for change in diff.changes[:SHOWN]],
    }
    publish(page(diff, outcome, link), f"tables-{named_model(config)}", diff.sentence)
    return outcome


def champion_sentence(version: Version) -> str:
    """The version in use, for people."""
    note = f" It is {version.provisional}." if version.provisional else ""
    return f"{version} is in use since {version.tags['decided_at']} ({version.made_of.topology}).{note}"


def start(flow: str, values: dict[str, Any], key: str, name: str) -> tuple[str, str, str]:
    """Start the model's deployment of a flow, unless it was with the same key; returns the run's name, state and page."""
    where = f"{flow}/{deployment.name}"
    run: Any = run_deployment(where, parameters=values, timeout=0, idempotency_key=key, flow_run_name=name)
    return run.name, str(run.state_name).lower(), f"{get_current_settings().ui_url}/runs/flow-run/{run.id}"


def learn_from_new(options: WatchOptions, model: str) -> str:
    """Learn from the newest profiles, unless it was done; returns a sentence."""
    profiles = dict([*profiles_in(str(options.profiles)).items()][-PROFILES:])
    names = ", ".join(map(source_label, profiles))
    if not profiles or not options.start:
        return f"Profiles in {options.profiles}: {names or 'none'}."
    key, name = json_digest([model, profiles]), f"{model} {source_label([*profiles][-1])}"
    run, state, _ = start("learn", {"profiles": [*profiles]}, key, name)
    return f"Learning {run} from {names} is {state}."


def retraining_key(options: WatchOptions, dataset: str, day: date) -> str:
    """The identity of a retraining: of the same tables and options, one is started a day."""
    return f"{dataset} {json.dumps(options.given(), sort_keys=True)} {day}"


def page(diff: DatasetDiff, outcome: dict[str, Any], link: str) -> str:
    """The difference as Markdown."""
    num_hidden = len(diff.changes) - SHOWN
    parts = [
        f"# {outcome['source']}",
        f"**{diff.sentence}**",
        f"Dataset {outcome['dataset']}, last trained on {outcome['trained'] or 'none'}.",
        f"[{outcome['retraining']}]({link})" if link else outcome["retraining"],
        outcome["learning"],
        outcome["champion"],
        markdown_table(outcome["table"]),
        f"... and {num_hidden} more" if num_hidden > 0 else "",
    ]
    return "\n\n".join(filter(None, parts))
