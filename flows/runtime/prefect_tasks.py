"""Decorators for Prefect tasks: not cached by Prefect unless they say so, and retried where that can help."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from flows.runtime.retries import may_pass, measurement_failed

P = ParamSpec("P")
R = TypeVar("R")

_DEFAULTS: dict[str, Any] = {"cache_policy": NO_CACHE, "retry_delay_seconds": exponential_backoff(2)}


def retried_task(name: str, **options: Any) -> Callable[[Callable[P, R]], Task[P, R]]:
    """A Prefect task that is tried again when a server, a store or a disk failed."""
    return task(name=name, **{**_DEFAULTS, "retries": 2, "retry_condition_fn": may_pass, **options})


def measuring_task(name: str, **options: Any) -> Callable[[Callable[P, R]], Task[P, R]]:
    """A Prefect task that measures: it is also tried again, with fresh ranks, when a measurement failed."""
    return task(name=name, **{**_DEFAULTS, "retries": 1, "retry_condition_fn": measurement_failed, **options})
