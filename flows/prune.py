"""Removes old files that no registered version needs; `storage.retention` decides which."""

from typing import Any

from flows.forms.form import deployed
from flows.forms.options import PruneOptions
from flows.tasks.pruning import remove_old
from storage.store import open_store


@deployed("prune")
def prune(options: PruneOptions) -> dict[str, Any]:
    """Old lookups, cost samples, checkpoints and reports -> a list of them; with `delete` they are removed."""
    return remove_old(open_store(), options.older_than_days, options.delete)
