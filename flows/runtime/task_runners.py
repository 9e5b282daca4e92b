"""Where the work of many small parts runs: threads of this process, or a Dask or Ray cluster, by `DREAMSHARD_TASK_RUNNER`.

    threads                 one thread per core; the default
    dask                    a Dask cluster of this machine, for as long as there is work
    dask:tcp://HOST:PORT    a Dask scheduler that runs
    ray                     a Ray cluster of this machine, for as long as there is work
    ray:ray://HOST:PORT     a Ray cluster that runs; `ray:auto` the one that this machine belongs to

Workers elsewhere need this package, the lake at the same path or URI, and Prefect's API (`PREFECT_API_URL`). They are
told references, as all tasks are, and write to the lake themselves.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from prefect.tasks import Task

Result = TypeVar("Result")

VARIABLE = "DREAMSHARD_TASK_RUNNER"
THREADS = "threads"
OBJECT_STORE_BYTES = 2**27
"""Of a Ray cluster of this machine: tasks pass references, so there is nothing to store."""


def setting() -> str:
    """The setting as it is now."""
    return os.environ.get(VARIABLE) or THREADS


def is_remote() -> bool:
    """Whether tasks run in other processes than this one."""
    return setting() != THREADS


def task_runner(wanted: str) -> TaskRunner[Any]:
    """The task runner that a setting names; nothing is started yet.

    Raises:
        ValueError: there is no such runner, or its extra is not installed.
    """
    kind, _, address = wanted.partition(":")
    if wanted == THREADS:
        return ThreadPoolTaskRunner(max_workers=os.cpu_count() or 1)
    if kind == "dask":
        return _dask(address)
    if kind == "ray":
        return _ray(address)
    raise ValueError(
        f"{VARIABLE} is {wanted!r}, which names no task runner, so nothing can be run; give threads, dask, "
        "dask:tcp://HOST:PORT, ray or ray:ray://HOST:PORT"
    )


def run_all(
    task: Task[..., Result],
    calls: Sequence[Mapping[str, Any]],
    finished: Callable[[int, Result], None],
) -> None:
    """Run `task` once with each of `calls` on the runner of the setting.

    Args:
        task: a Prefect task.
        calls: arguments by name.
        finished: told the position of each call and what it returned, in order.

    Raises:
        ValueError: the setting is wrong.
        Exception: what a call raised; those that have begun are waited for.
    """
    runner = task_runner(setting())
    if not calls:
        return
    with _reachable(), runner:
        futures = [runner.submit(task, parameters=dict(call)) for call in calls]
        for position, future in enumerate(futures):
            finished(position, future.result())


@contextmanager
def _reachable() -> Iterator[None]:
    """Tell other processes of this machine where Prefect's temporary server is; each would start its own otherwise."""
    server = SubprocessASGIServer()
    if PREFECT_API_URL.value() or not server.running or not is_remote():
        yield
        return
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        yield


def _dask(address: str) -> TaskRunner[Any]:
    try:
        from prefect_dask import DaskTaskRunner
    except ImportError as error:
        raise _missing("dask", error) from error
    workers = {"n_workers": os.cpu_count() or 1, "threads_per_worker": 1, "dashboard_address": None}
    here = {"cluster_class": "distributed.LocalCluster", "cluster_kwargs": workers}
    runner: TaskRunner[Any] = DaskTaskRunner(**({"address": address} if address else here))
    return runner


def _ray(address: str) -> TaskRunner[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry; read when Ray is first imported
    try:
        import ray  # noqa: F401 - prefect_ray imports it late
        from prefect_ray import RayTaskRunner
    except ImportError as error:
        raise _missing("ray", error) from error
    here = {"init_kwargs": {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}}
    runner: TaskRunner[Any] = RayTaskRunner(**({"address": address} if address else here))
    return runner


def _missing(extra: str, error: ImportError) -> ValueError:
    return ValueError(
        f"{VARIABLE} asks for {extra}, but {error.name or error} is not installed, so nothing can be run there; install "
        f"the extra: pip install 'dreamshard[{extra}]'"
    )
