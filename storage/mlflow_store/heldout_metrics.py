"""Names of metrics that were measured on held-out tasks.

MLflow sets metrics of the same name side by side, so the name says which tasks they are of: `tasks_1a2b3c4d/eval_overall_ms`
stands in one row only for versions that were measured on the same tasks.
"""

import re
from collections.abc import Mapping

_OF_TASKS = re.compile(r"tasks_[^/]+/")


def named(metrics: Mapping[str, float], tasks: str) -> dict[str, float]:
    """The metrics by names that hold the key of their tasks."""
    return {f"{_prefix(tasks)}{name}": value for name, value in metrics.items()}


def plain(metrics: Mapping[str, float], *tasks: str) -> dict[str, float]:
    """The metrics of a run by their names without tasks; of those measured on held-out tasks, only those of `tasks`."""
    kept = {name: value for name, value in metrics.items() if not _OF_TASKS.match(name)}
    for prefix in map(_prefix, tasks):
        kept |= {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
    return kept


def _prefix(tasks: str) -> str:
    return f"tasks_{tasks[:8]}/"
