"""Runs many small Prefect tasks in threads of this process, or on a Ray cluster, by `DREAMSHARD_TASK_RUNNER`.

    threads                 one thread per core; the default
    ray:ray://HOST:PORT     a running Ray cluster; `ray:auto` is the cluster of this machine

Ray's workers need this package, the lake at the same address, and Prefect's server (`PREFECT_API_URL`). They receive
references and write to the lake themselves.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from prefect.tasks import Task

Result = TypeVar("Result")

VARIABLE = "DREAMSHARD_TASK_RUNNER"
THREADS = "threads"


def task_runner() -> TaskRunner[Any]:
    """The task runner of the environment, not started yet.

    Raises:
        ValueError: there is no such runner, or its extra is not installed.
    """
    if os.environ.get(VARIABLE, THREADS) == THREADS:
        return ThreadPoolTaskRunner(max_workers=os.cpu_count() or 1)
    kind, _, address = os.environ[VARIABLE].partition(":")
    if kind != "ray" or not address:
        raise ValueError(f"{VARIABLE} is {os.environ[VARIABLE]!r}; give threads, ray:auto or ray:ray://HOST:PORT")
    try:
        from prefect_ray import RayTaskRunner
    except ImportError as error:
        raise ValueError(f"{VARIABLE} asks for Ray ({error}); install it: pip install 'dreamshard[ray]'") from error
    runner: TaskRunner[Any] = RayTaskRunner(address=address)
    return runner


def run_all(
    task: Task[..., Result], calls: Sequence[Mapping[str, Any]], finished: Callable[[int, Result], None]
) -> None:
    """Run a Prefect task once with each of `calls`; `finished` gets the position and result of each, in order."""
    if not calls:
        return
    with task_runner() as runner:
        futures = [runner.submit(task, parameters=dict(call)) for call in calls]
        for position, future in enumerate(futures):
            finished(position, future.result())
