"""Looks at a source of tables every 15 minutes, and requests a retraining when they changed enough.

The event `dreamshard.tables.changed` carries the difference and the parameters of the retraining; an automation, declared at
the retrain deployment in `prefect.yaml`, starts it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prefect.artifacts import create_markdown_artifact
from prefect.events import emit_event

from dreamshard.files.text import markdown_table
from dreamshard.sizing import with_batch_size
from dreamshard.testbeds.capacity import Capacity
from dreamshard.workloads.dataset_diff import DatasetDiff, DriftThresholds
from flows.decisions import retraining_due
from flows.decisions.version_in_use import version_in_use
from flows.forms.configuration import configure
from flows.forms.form import deployed
from flows.forms.options import RetrainingOptions, WatchOptions
from flows.tasks import watching
from flows.tasks.ingestion import ingest_workload
from flows.tasks.sizing import settle
from flows.tasks.stage_inputs import open_for

SHOWN = 100
"""Largest number of changed tables in the artifact and the outcome."""


@deployed("watch")
def watch(options: WatchOptions) -> dict[str, Any]:
    """Source -> what changed since the last training -> an event where it matters."""
    config, store = with_batch_size(configure(options)), open_for(options)
    # the event's automation cannot pass an empty one on: Prefect refuses null for a choice
    options = replace(options, algorithm=config.training.algorithm)
    if options.source is not None:
        options = replace(options, source=config.workload.source, batches=config.workload.batches)
    dataset = ingest_workload(store, config.workload).dataset
    config, _ = settle(store, config, dataset, Capacity(kind="unknown"))
    trained = retraining_due.last_trained(store, config, dataset)
    thresholds = DriftThresholds(pooling=options.pooling_drift, reuse=options.reuse_drift, share=options.changed_share)
    diff = watching.compare_datasets(store, trained, dataset, thresholds)
    in_use, failing = version_in_use(store, config), watching.find_failures(options)
    reason = reason_to_wait(diff, dataset, options, failing)
    emitted = options.emit and reason is None
    filled = ", ".join(f"{name} {value}" for name, value in options.parameters().items() if value is not None)
    outcome = {
        "dataset": dataset,
        "trained": trained,
        "source": config.workload.source,
        "retraining": reason or f"Retraining is due: {filled}.",
        "emitted": emitted,
        "in_use": "No version is in use yet." if in_use is None else in_use.sentence(),
        "failing": None if failing is None else failing.sentence(),
        **diff.payload(),
    }
    publish(diff, outcome)
    if emitted:
        emit_changed(outcome, options)
    return {**outcome, "table": diff.rows(SHOWN)}


def reason_to_wait(
    diff: DatasetDiff, dataset: str, options: RetrainingOptions, failing: watching.Failing | None
) -> str | None:
    """Why no retraining with these options is due, in a sentence; None if one is."""
    if not diff.matters:
        return "Nothing needs to be trained."
    if options.source is None:
        return (
            "The recipe's own tables are a bundled list, which does not change, so nothing is requested; give your own to "
            "`dreamshard up --source` (or DREAMSHARD_SOURCE, or the field Tables from)."
        )
    pending = watching.find_running(options)
    if pending is not None:
        return f"Retraining {pending} is under way."
    requests = watching.find_requests(dataset, options)
    if requests and not watching.is_due_again(requests, failing):
        return (
            f"Retraining was requested at {requests[0]:%Y-%m-%d %H:%M} UTC and has not succeeded; it is requested again a "
            "day later, unless tables change before. Start `retrain` to try at once."
        )
    return None


def emit_changed(outcome: Mapping[str, Any], options: RetrainingOptions) -> None:
    """Emit the event that starts the retraining, with its options as `payload.parameters`."""
    resource = {
        "prefect.resource.id": f"dreamshard.tables.{outcome['dataset']}",
        "prefect.resource.name": str(outcome["source"]),
        "dreamshard.recipe": options.recipe,
    }
    payload = {**outcome, "parameters": options.parameters()}
    emit_event(watching.EVENT, resource, payload=payload)


def publish(diff: DatasetDiff, outcome: Mapping[str, Any]) -> None:
    """Show the difference as an artifact of the flow run."""
    rows = diff.rows(SHOWN)
    num_hidden = len(diff.changes) - len(rows)
    parts = [
        f"# {outcome['source']}",
        f"**{diff.sentence}**",
        f"Dataset {outcome['dataset']}, last trained on {outcome['trained'] or 'none'}. {outcome['retraining']}",
        outcome["in_use"],
        f"**{outcome['failing']}**" if outcome["failing"] else "",
        markdown_table(rows),
        f"... and {num_hidden} more" if num_hidden else "",
    ]
    create_markdown_artifact("\n\n".join(filter(None, parts)), key="dreamshard-tables", description=diff.sentence)
