"""MLflow's or Prefect's server stops in the middle of a run and comes back: the run waits, or the same command goes on.

A command that does not wait long enough ends in one sentence, without a traceback; the same command then ends as an
undisturbed one. How many waited and how many were run again is in the notes.
"""

import os
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from flows.servers.local_servers import SERVER, TEAM
from flows.servers.processes import answers
from storage.mlflow_store import server
from storage.settings import Settings
from tests.chaos.kills import RUN, Trial
from tests.chaos.survived import Survived
from tests.helpers import forks
from tests.helpers.ports import free_port

ATTEMPTS = 4  # for each server
WAITED, AGAIN, EARLY = "waited", "run again", "ended before"
_LONGEST_AWAY_S = 20.0
_END_S = 600.0


class Server:
    """A server that can be killed and started again at the same address.

    Args:
        health: path that answers once it is there.
        log: its output.
    """

    def __init__(
        self, command: list[str], environment: Mapping[str, str], address: str, health: str, log: Path
    ) -> None:
        self._command, self._environment, self._log = command, {**os.environ, **environment}, log
        self.address, self._health = address, f"{address}{health}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)
        deadline = time.monotonic() + _END_S
        while not answers(self._health):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._health} does not answer: {self._log.read_text()[-500:]}")
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill -9, as for want of memory."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def mlflow_server(folder: Path) -> Server:
    """MLflow's server on a database of its own."""
    folder.mkdir(parents=True)
    settings = Settings.from_environment({"DREAMSHARD_HOME": str(folder)})
    port = free_port()
    command = server.command(settings, port)
    return Server(command, server.environment(settings), f"http://127.0.0.1:{port}", "/health", folder / "server.log")


def prefect_server(folder: Path) -> Server:
    """Prefect's server as `up` starts it."""
    folder.mkdir(parents=True)
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    environment = {**TEAM, "PREFECT_HOME": str(folder), "PREFECT_API_URL": f"{address}/api", "DREAMSHARD_LOGIN": ""}
    command = [*SERVER, "--host", "127.0.0.1", "--port", str(port)]
    return Server(command, environment, address, "/api/health", folder / "server.log")


def run(scale: float, seed: int) -> list[Survived]:
    """A row for each server."""
    count = max(1, round(ATTEMPTS * scale))
    with tempfile.TemporaryDirectory(prefix="dreamshard-gone-") as name, forks.environment(), ExitStack() as stack:
        folder = Path(name)
        port = stack.enter_context(forks.prefect_server())
        trial = Trial(folder, port, seed)
        with ThreadPoolExecutor(2) as pool:
            rows = [
                pool.submit(_tried, trial, "MLflow", mlflow_server, count),
                pool.submit(_tried, trial, "Prefect", prefect_server, count),
            ]
        return [row.result() for row in rows]


def _tried(trial: Trial, name: str, make: Callable[[Path], Server], count: int) -> Survived:
    draw, problems, number = random.Random(f"{trial.seed} {name}"), [], 0
    outcomes: Counter[str] = Counter()
    while outcomes[WAITED] + outcomes[AGAIN] < count:
        number += 1
        folder = trial.folder / f"{name}-{number}"
        with make(folder / "server") as gone:
            outcome, wrong = _attempt(trial, name, gone, folder / "home", draw)
        outcomes[outcome] += 1
        problems += [f"attempt {number}: {'; '.join(wrong)}"] if wrong else []
        print(f"{name} {number}: {outcome} {wrong or ''}", flush=True)
    note = "; ".join(
        [f"{outcomes[WAITED]} waited, {outcomes[AGAIN]} ended in one sentence and were run again", *problems]
    )
    return Survived(
        what=f"{name}'s server gone in mid-run and back", tried=count, survived=count - len(problems), note=note[:1500]
    )


def _attempt(trial: Trial, name: str, gone: Server, home: Path, draw: random.Random) -> tuple[str, list[str]]:
    """What became of the run, and what was wrong; one that ends before its server goes counts as no attempt."""
    address = {"MLFLOW_TRACKING_URI": gone.address} if name == "MLflow" else {"PREFECT_API_URL": f"{gone.address}/api"}
    environment = {"DREAMSHARD_HOME": str(home), **address}
    log = home.with_suffix(".log")
    running = forks.started(RUN, environment, log)
    moment, away = draw.uniform(0.3, 1.0) * 2 * sum(trial.spans_s.values()), draw.uniform(1.0, _LONGEST_AWAY_S)
    if running.wait(moment) == 0:
        return EARLY, []
    gone.kill()
    time.sleep(away)
    gone.start()
    code, wrong = running.wait(_END_S), []
    outcome = WAITED if code == 0 else AGAIN
    if code is None:
        forks.kill(running, group=True)
        running.wait(30)
        wrong.append(f"it neither ended nor went on within {_END_S:g} s after {away:.0f} s without the server")
    elif code != 0:
        said = running.said().strip().splitlines()
        if code != 1 or "Traceback" in running.said() or not said or "--debug" in said[-1]:
            wrong.append(f"at {moment:.0f} s for {away:.0f} s: ended with {code}: {said[-1:]}")
    if code != 0:
        again = forks.started(RUN, environment, log)
        if again.wait(_END_S) != 0:
            forks.kill(again, group=True)
            with suppress(OSError):
                wrong.append(f"not continued: {again.said()[-300:]}")
            return outcome, wrong
    now, more = trial.look(environment)
    return outcome, wrong + more + ([] if now is None else trial.differences(now))
