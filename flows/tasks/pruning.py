"""The Prefect task that removes old files; `storage.retention` decides which."""

from typing import Any

from prefect import get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.context import FlowRunContext

from flows.runtime.retries import retried_task
from storage import retention
from storage.store import Store


@retried_task("remove old files")
def remove_old(store: Store, older_than_days: int, delete: bool) -> dict[str, Any]:
    """Find old files that nothing needs, remove them if `delete` says so, and return how many and how large they are.

    Raises:
        ValueError: the registry or the lake cannot tell what is needed; nothing has been removed.
    """
    table = retention.prune(store, older_than_days=older_than_days, delete=delete)
    outcome = "removed" if delete else "would be removed (a dry run: give `delete` to remove them)"
    files, size_bytes = table[-1]["files"], table[-1]["bytes"]
    get_run_logger().info("%d files, %d bytes, older than %d days %s", files, size_bytes, older_than_days, outcome)
    if FlowRunContext.get() is not None:
        description = f"Older than {older_than_days} days, {outcome}."
        create_table_artifact(table, key="dreamshard-prune", description=description)
    return {"older_than_days": older_than_days, "deleted": delete, "table": table}
