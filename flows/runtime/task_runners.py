"""Where many small Prefect tasks run: in threads of this process, or on a Ray cluster, by `DREAMSHARD_TASK_RUNNER`.

    threads                 one thread per core; the default
    ray:ray://HOST:PORT     a running Ray cluster; `ray:auto` is the cluster of this machine

Ray's workers need this package, the lake at the same address, and Prefect's server (`PREFECT_API_URL`). They receive
references and write to the lake themselves.
"""

import os
from typing import Any

from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

VARIABLE = "DREAMSHARD_TASK_RUNNER"


def task_runner() -> TaskRunner[Any]:
    """The task runner of the environment, not started yet.

    Raises:
        ValueError: there is no such runner, or its extra is not installed.
    """
    wanted = os.environ.get(VARIABLE, "threads")
    if wanted == "threads":
        return ThreadPoolTaskRunner(max_workers=os.cpu_count() or 1)
    kind, _, address = wanted.partition(":")
    if kind != "ray" or not address:
        raise ValueError(f"{VARIABLE} is {wanted!r}; give threads, ray:auto or ray:ray://HOST:PORT")
    try:
        from prefect_ray import RayTaskRunner
    except ImportError as error:
        raise ValueError(f"{VARIABLE} asks for Ray ({error}); install it: pip install 'dreamshard[ray]'") from error
    runner: TaskRunner[Any] = RayTaskRunner(address=address)
    return runner
