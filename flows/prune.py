"""Removes old versions, and files that no version needs; `storage.retention` decides which."""

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
    """Old versions, lookups, cost samples, checkpoints, reports -> a list of them; with `delete` they are removed."""
    return remove_old(open_store(), options)


@retried_task("remove old files")
def remove_old(store: Store, options: PruneOptions) -> dict[str, Any]:
    """Find old files that nothing needs, remove them if `delete` says so, and return how many and how large they are.

    Raises:
        ValueError: the registry or the lake cannot tell what is needed; nothing has been removed.
    """
    table = retention.prune(store, **options.model_dump())
    done = "removed" if options.delete else "would be removed (give `delete` to remove them)"
    sentence = (
        f"{table[-1]['files']} files, {table[-1]['bytes']} bytes, older than {options.older_than_days} days {done}"
    )
    announce(sentence)
    publish(markdown_table(table), "dreamshard-prune", sentence)
    return options.model_dump() | {"table": table}
