"""CPU time of a request to `dreamshard serve`: placing 50 tables on 4 devices over HTTP, for one client and for eight.

The reference is the same placement by a library call.
"""

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import psutil

from dreamshard.model_files import save_placer
from dreamshard.tasks import PlacementTask
from dreamshard.training import make_placer
from flows.servers.scoring_server import scoring_server
from storage.mlflow_store import registration, runs
from storage.settings import Settings
from storage.store import open_store
from tests.benchmarks.measuring import Row, cpu_seconds, row, trained
from tests.benchmarks.pools import Size, large_task

SIZE = Size(50, 4)


def rows(quick: bool = False) -> Iterator[Row]:
    """One client, then eight clients at once."""
    task, placer = large_task(SIZE), make_placer(trained("mixed", 0, 30))
    requests = 20 if quick else 100
    straight, _ = cpu_seconds(lambda: placer.place(task), 9)
    with TemporaryDirectory() as folder:
        settings = open_store(Settings.from_environment({"DREAMSHARD_HOME": folder})).settings
        save_placer(placer, Path(folder) / "placer")
        with runs.chain(settings, "benchmark") as run:
            version = registration.register_placer(settings, Path(folder) / "placer", run)
        with scoring_server(settings, version) as (address, process):
            server = psutil.Process(process.pid)
            for clients in (1, 8):
                cpu_ms, wall_ms = _asked(address, server, _request(task), clients, requests)
                name = f"request of {SIZE} to the scoring server, {clients} at a time"
                yield row(name, cpu_ms, "ms CPU", None, 1e3 * straight)
                yield row(f"- of it median time to answer, {clients} at a time", wall_ms, "ms")


def _asked(
    address: str, server: psutil.Process, request: dict[str, Any], clients: int, requests: int
) -> tuple[float, float]:
    """CPU milliseconds of the server's processes per request, and the median wall milliseconds a client waits."""

    def ask(_: int) -> float:
        began = time.perf_counter()
        httpx.post(f"{address}/invocations", json=request, timeout=60).raise_for_status()
        return time.perf_counter() - began

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(ask, range(2 * clients)))  # not measured: the first requests import what they need
        before = _cpu_s(server)
        waited = list(pool.map(ask, range(requests)))
    return 1e3 * (_cpu_s(server) - before) / requests, 1e3 * statistics.median(waited)


def _cpu_s(server: psutil.Process) -> float:
    family = [server, *server.children(recursive=True)]
    return float(sum(times.user + times.system for times in (each.cpu_times() for each in family)))


def _request(task: PlacementTask) -> dict[str, Any]:
    tables = task.tables
    columns = {
        "name": tables.names,
        "rows": tables.rows.tolist(),
        "dim": tables.dim.tolist(),
        "pooling_factor": tables.pooling_factor.tolist(),
        "lookups": tables.lookups.tolist(),
        "unique_rows": tables.unique_rows.tolist(),
        "bins": tables.bins.tolist(),
    }
    listed = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    wanted = {"num_devices": task.num_devices, "memory_gb": task.memory_bytes / 2**30, "precision": task.precision}
    return {"inputs": [wanted | {"optimizer": task.optimizer, "tables": listed}]}
