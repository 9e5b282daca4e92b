"""`dreamshard worker`: this machine runs flows for the servers of a team."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx

PROJECT = Path(__file__).resolve().parents[2]
NEEDED: Mapping[str, str] = {
    "PREFECT_API_URL": "http://HOST:4200/api",
    "MLFLOW_TRACKING_URI": "http://HOST:5000",
}
"""Settings without which the worker's runs would be seen by nobody else, with an example."""


def become(pool: str, queue: str | None, limit: int) -> None:
    """Turn this process into Prefect's worker for `pool`, once the host's concurrency limit is on the server.

    Args:
        pool: a work pool that exists; its type says how runs are started.
        queue: the only queue of the pool to take runs from, or None for all.
        limit: runs at once.

    Raises:
        ValueError: a setting is missing, or names no server.
        RuntimeError: Prefect's server does not answer.
    """
    environment = worker_environment(os.environ)
    from flows.runtime.locks import (  # Prefect, which reads the environment when it is first imported
        host_limit,
        make_limit,
    )

    try:
        make_limit(host_limit())
    except httpx.HTTPError as error:
        raise RuntimeError(
            f"Prefect's server at {environment['PREFECT_API_URL']} does not answer ({error}), so there are no runs to "
            "take; start it with `dreamshard up`, or correct PREFECT_API_URL"
        ) from error
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--limit", str(limit)]
    os.execve(sys.executable, [*command, *(("--work-queue", queue) if queue else ())], environment)


def worker_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the worker and its runs see: `environ`, and this project on the path.

    Raises:
        ValueError: a setting is missing, or names no server.
    """
    for name, example in NEEDED.items():
        if not environ.get(name, "").startswith("http"):
            raise ValueError(
                f"{name} is {environ.get(name) or 'not set'}, so what runs here would not be seen by the team; set it "
                f"to the server's address, e.g. {example}"
            )
    paths = os.pathsep.join([str(PROJECT), *filter(None, [environ.get("PYTHONPATH")])])
    return {**environ, "PYTHONPATH": paths}
