"""Removes old files that no registered version needs; `storage.retention` decides which."""

from typing import Any

from flows.forms.form import deployed
from flows.forms.options import PruneOptions
from flows.reports.pages import markdown_table, publish
from flows.runtime.progress import announce
from flows.runtime.retries import retried_task
from storage import retention
from storage.store import Store, open_store


@deployed
def prune(options: PruneOptions) -> dict[str, Any]:
    """Old lookups, cost samples, checkpoints and reports -> a list of them; with `delete` they are removed."""
    return remove_old(open_store(), options.older_than_days, options.delete)


@retried_task("remove old files")
def remove_old(store: Store, older_than_days: int, delete: bool) -> dict[str, Any]:
    """Find old files that nothing needs, remove them if `delete` says so, and return how many and how large they are.

    Raises:
        ValueError: the registry or the lake cannot tell what is needed; nothing has been removed.
    """
    table = retention.prune(store, older_than_days=older_than_days, delete=delete)
    done = "removed" if delete else "would be removed (give `delete` to remove them)"
    sentence = f"{table[-1]['files']} files, {table[-1]['bytes']} bytes, older than {older_than_days} days {done}"
    announce(sentence)
    publish(markdown_table(table), "dreamshard-prune", sentence)
    return {"older_than_days": older_than_days, "deleted": delete, "table": table}
