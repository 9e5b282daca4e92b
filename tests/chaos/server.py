"""Fifty clients at once on the scoring server: every answer right and memory flat, beside bodies that exceed its limits."""

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil

from dreamshard.trained import save_placer
from flows.servers.scoring_server import scoring_server
from storage.mlflow_store import registration, runs
from storage.settings import Settings
from storage.store import open_store
from tests.chaos.survived import Survived
from tests.helpers.trained import learnt_placer

CLIENTS, REQUESTS = 50, 10_000
_REFUSED_EVERY = 50  # requests; one of them is refused
_MOST_GROWTH_MIB = 64
_TABLE = {"name": "t", "rows": 1000, "dim": 16, "pooling_factor": 2.0}


def run(scale: float, seed: int) -> list[Survived]:
    """A row for the requests and one for the server's memory."""
    count = max(CLIENTS, round(REQUESTS * scale))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = open_store(Settings.from_environment({"DREAMSHARD_HOME": str(folder / "home")})).settings
        save_placer(learnt_placer(), folder / "placer")
        with runs.chain(settings, "chaos") as run:
            version = registration.register_placer(settings, folder / "placer", run)
        with scoring_server(settings, version) as (address, process):
            server = psutil.Process(process.pid)
            _answers(address, CLIENTS, seed)  # not counted: the first requests import what they need
            before = _memory_mib(server)
            found = _answers(address, count, seed + 1)
            grown = _memory_mib(server) - before
    right = [seconds for seconds, is_right in found if is_right]
    times = statistics.quantiles([1e3 * seconds for seconds, _ in found], n=100)
    note = f"p50 {times[49]:.0f} ms, p99 {times[98]:.0f} ms, of all answers"
    flat = grown <= _MOST_GROWTH_MIB
    return [
        Survived(what=f"requests of {CLIENTS} clients at once", tried=len(found), survived=len(right), note=note),
        Survived(
            what="memory of the server after them",
            tried=1,
            survived=int(flat),
            note=f"{before:.0f} MiB before, {grown:+.0f} after",
        ),
    ]


def _answers(address: str, count: int, seed: int) -> list[tuple[float, bool]]:
    """Seconds of each answer, and whether it was the right one."""
    draw = random.Random(seed)
    jobs = [_refused(draw) if number % _REFUSED_EVERY == 0 else _placed(draw) for number in range(count)]
    limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS)
    with httpx.Client(base_url=address, timeout=60, limits=limits) as client, ThreadPoolExecutor(CLIENTS) as pool:

        def ask(job: tuple[bytes, Callable[[httpx.Response], bool]]) -> tuple[float, bool]:
            content, is_right = job
            began = time.perf_counter()
            try:
                answer = client.post("/invocations", content=content, headers={"Content-Type": "application/json"})
            except httpx.HTTPError:
                return time.perf_counter() - began, False
            return time.perf_counter() - began, is_right(answer)

        return list(pool.map(ask, jobs))


def _placed(draw: random.Random) -> tuple[bytes, Callable[[httpx.Response], bool]]:
    names = [f"t{number}" for number in range(draw.randint(1, 8))]
    request = {"num_devices": draw.randint(1, 4), "memory_gb": 1, "tables": [_TABLE | {"name": name} for name in names]}

    def is_right(answer: httpx.Response) -> bool:
        if answer.status_code != httpx.codes.OK:
            return False
        [plan] = answer.json()["predictions"]
        return {each["table"] for each in plan["shards"]} == set(names)

    return json.dumps({"inputs": [request]}).encode(), is_right


def _refused(draw: random.Random) -> tuple[bytes, Callable[[httpx.Response], bool]]:
    content, status = draw.choice(
        [
            (b" " * (17 * 2**20), 413),
            (b'{"inputs": [' + b",".join([b"{}"] * 17) + b"]}", 422),
            (b"[" * 100_000, 422),
            (b'{"inputs": [{"num_devices": 0}]}', 400),
        ]
    )
    return content, lambda answer: answer.status_code == status


def _memory_mib(server: psutil.Process) -> float:
    family = [server, *server.children(recursive=True)]
    return float(sum(each.memory_info().rss for each in family)) / 2**20
