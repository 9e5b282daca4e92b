"""`dreamshard worker`: runs flows on this machine for the servers of a team."""

import os
import sys
from collections.abc import Mapping

import httpx

from flows.servers.processes import with_project

NEEDED = {"PREFECT_API_URL": "http://HOST:4200/api", "MLFLOW_TRACKING_URI": "http://HOST:5000"}
"""Required settings, each with an example; without them nobody else would see the worker's runs."""


def run_worker(pool: str, queue: str | None, limit: int) -> None:
    """Replace this process by Prefect's worker, after creating the host's concurrency limit on the server.

    Runs that a killed worker of this host left are marked as crashed, so that nothing waits for them.

    Args:
        pool: an existing work pool.
        queue: take runs only from this queue of the pool; None for all.
        limit: number of simultaneous runs.

    Raises:
        ValueError: a setting is missing, or is not a server's address.
        RuntimeError: Prefect's server does not answer.
    """
    environment = worker_environment(os.environ)
    from flows.forms.flow_run_owners import end_abandoned  # imports Prefect, which then reads the environment
    from flows.runtime.run_locks import host_limit, make_limit

    try:
        make_limit(host_limit())
        end_abandoned()
    except httpx.HTTPError as error:
        raise RuntimeError(
            f"Prefect's server at {environment['PREFECT_API_URL']} does not answer ({error}), so there are no runs to "
            "take; start it with `dreamshard up`, or correct PREFECT_API_URL"
        ) from error
    command = [sys.executable, "-m", "flows.servers.worker_program", "--pool", pool, "--limit", str(limit)]
    os.execve(sys.executable, [*command, *(("--work-queue", queue) if queue else ())], environment)


def worker_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the worker and its runs: `environ`, with this project on Python's path.

    Raises:
        ValueError: a setting is missing, or is not a server's address.
    """
    for name, example in NEEDED.items():
        if not environ.get(name, "").startswith("http"):
            raise ValueError(
                f"{name} is {environ.get(name) or 'not set'}, so the team would not see what runs here; set it "
                f"to the server's address, e.g. {example}"
            )
    return with_project(environ)
