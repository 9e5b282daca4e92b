"""Where many small Prefect tasks run: threads of this process, or a Dask or Ray cluster, by `DREAMSHARD_TASK_RUNNER`.

    threads                 one thread per core; the default
    dask                    a Dask cluster on this machine, started while there is work
    dask:tcp://HOST:PORT    a running Dask scheduler
    ray                     a Ray cluster on this machine, started while there is work
    ray:ray://HOST:PORT     a running Ray cluster; `ray:auto` is the one that this machine belongs to

Workers on other machines need this package, the lake at the same path or URI, and Prefect's API (`PREFECT_API_URL`). They
receive references, as all Prefect tasks do, and write to the lake themselves.
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
"""Size for a Ray cluster on this machine: Prefect tasks pass references, so there is nothing to store."""


def setting() -> str:
    """The current setting."""
    return os.environ.get(VARIABLE) or THREADS


def is_remote() -> bool:
    """Whether Prefect tasks run in other processes."""
    return setting() != THREADS


def task_runner(name: str) -> TaskRunner[Any]:
    """The task runner that a setting names, not started yet.

    Raises:
        ValueError: there is no such runner, or its extra is not installed.
    """
    kind, _, address = name.partition(":")
    if name == THREADS:
        return ThreadPoolTaskRunner(max_workers=os.cpu_count() or 1)
    if kind not in _CLUSTERS:
        raise ValueError(
            f"{VARIABLE} is {name!r}, which names no task runner, so nothing can be run; give threads, dask, "
            "dask:tcp://HOST:PORT, ray or ray:ray://HOST:PORT"
        )
    try:
        return _CLUSTERS[kind](address)
    except ImportError as error:
        raise ValueError(
            f"{VARIABLE} asks for {kind}, but {error.name or error} is not installed, so nothing can be run there; install "
            f"the extra: pip install 'dreamshard[{kind}]'"
        ) from error


def run_all(
    task: Task[..., Result], calls: Sequence[Mapping[str, Any]], finished: Callable[[int, Result], None]
) -> None:
    """Run a Prefect task once with each of `calls`, on the runner that the setting names.

    Args:
        task: a Prefect task.
        calls: arguments of each call, by name.
        finished: called with the position and the result of each call, in order.

    Raises:
        ValueError: the setting is wrong.
        Exception: a call failed; calls that have started are waited for.
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
    """Let other processes of this machine find Prefect's temporary server; otherwise each would start its own."""
    server = SubprocessASGIServer()
    if PREFECT_API_URL.value() or not server.running or not is_remote():
        yield
        return
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        yield


def _dask(address: str) -> TaskRunner[Any]:
    from prefect_dask import DaskTaskRunner

    workers = {"n_workers": os.cpu_count() or 1, "threads_per_worker": 1, "dashboard_address": None}
    local = {"cluster_class": "distributed.LocalCluster", "cluster_kwargs": workers}
    runner: TaskRunner[Any] = DaskTaskRunner(**({"address": address} if address else local))
    return runner


def _ray(address: str) -> TaskRunner[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry; read when Ray is first imported
    import ray  # noqa: F401 - prefect_ray imports it late
    from prefect_ray import RayTaskRunner

    local = {"init_kwargs": {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}}
    runner: TaskRunner[Any] = RayTaskRunner(**({"address": address} if address else local))
    return runner


_CLUSTERS = {"dask": _dask, "ray": _ray}
