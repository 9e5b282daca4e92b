"""The server of `dreamshard serve`: MLflow's scoring server on one version of the placer."""

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from flows.servers import scoring_app
from flows.servers.processes import EVERYWHERE, LOOPBACK, Process, child_process, free_port, wait_until_healthy
from flows.servers.scoring_limits import RequestLimits
from storage.mlflow_store.registry import load_placer, version_files, version_tags
from storage.mlflow_store.standings import provisional_note
from storage.settings import QUIET, Settings

_LIMITS = RequestLimits()


@contextmanager
def scoring_server(
    settings: Settings,
    version: str,
    *,
    port: int = 5001,
    host: str = LOOPBACK,
    workers: int = 1,
    limits: RequestLimits = _LIMITS,
    pages: bool = False,
    login: str | None = None,
) -> Iterator[tuple[str, Process]]:
    """Serve one version of the placer while the block runs; yields the server's address and process.

    Args:
        settings: where the registry and the logs are.
        version: reference to it, with its number.
        port: on the loopback interface another one if it is taken.
        host: interface to listen on.
        workers: processes, each with the placer in memory.
        limits: on what is posted to it.
        pages: whether it has pages about its API.
        login: NAME:PASSWORD that it asks for; None if it lets everyone in.

    Raises:
        ValueError: the version's files are lost, damaged, or not those that were saved.
        OSError: `host` is not an interface of this machine, or a port that others know is taken.
        RuntimeError: it did not start; the message ends with its last lines.
    """
    load_placer(version, settings)
    provisional = provisional_note(version_tags(settings, version))
    known = {
        "version": version,
        "search_s": limits.search_s,
        "caveat": provisional and f"version {version} is {provisional}",
    }
    logs = settings.home / "logs"
    chosen = free_port(port, host)
    environment = {
        "OMP_NUM_THREADS": "1",  # a request is many small steps, which threads slow down
        **os.environ,
        **QUIET,
        "MLFLOW_TRACKING_URI": settings.tracking_uri,
        "SERVING_MODEL_CONFIG": json.dumps(known),
        # MLflow's own limit leaves the computing running, so ours comes first
        "MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT": str(math.ceil(limits.answer_s) + 30),
        **scoring_app.environment(limits, pages=pages, login=login),
    }
    options = ["--host", host, "--port", str(chosen), "--workers", str(workers)]
    address = f"http://{LOOPBACK if host == EVERYWHERE else host}:{chosen}"
    with version_files(settings, version) as folder:  # what was checked is what runs
        command = [sys.executable, "-m", "flows.servers.scoring_app", str(folder), *options]
        with child_process("serve", command, environment, logs) as process:
            wait_until_healthy(f"{address}/health", process, logs / "serve.log")
            yield address, process
