"""Removes old files that no registered version needs; `storage.retention` decides which."""

from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from prefect.tasks import exponential_backoff

from flows.forms.form import deployed
from flows.forms.options import PruneOptions
from flows.runtime.retries import may_pass
from storage import retention
from storage.store import Store, open_store


@deployed("prune")
def prune(options: PruneOptions) -> dict[str, Any]:
    """Old lookups, cost samples, checkpoints and reports -> a list of them; with `delete` they are removed."""
    return remove_old(open_store(), options.older_than_days, options.delete)


@task(
    name="remove old files",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=exponential_backoff(2),
    retry_condition_fn=may_pass,
)
def remove_old(store: Store, older_than_days: int, delete: bool) -> dict[str, Any]:
    """Old files -> their number and size, in the log and as an artifact; removed where `delete` is set.

    Raises:
        ValueError: the registry or the lake cannot say what is needed; nothing has been removed.
    """
    table = retention.prune(store, older_than_days=older_than_days, delete=delete)
    what = "removed" if delete else "would be removed (a dry run: give `delete` to remove them)"
    files, size_bytes = table[-1]["files"], table[-1]["bytes"]
    get_run_logger().info("%d files, %d bytes, older than %d days %s", files, size_bytes, older_than_days, what)
    if FlowRunContext.get() is not None:
        create_table_artifact(table, key="dreamshard-prune", description=f"Older than {older_than_days} days, {what}.")
    return {"older_than_days": older_than_days, "deleted": delete, "table": table}
