"""Deploying from a process of its own, beside servers that start: it loads the flows while the servers load.

The process reads what to deploy from its standard input, since every user of the machine can read the arguments of a command,
and says each step in a line of JSON on its standard output: first that the setting was checked, then that everything is
deployed. What it prints otherwise goes to the log.
"""

import json
import os
import select
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event
from typing import IO, Any

from flows.servers.processes import PROJECT, Process, end, last_lines, raise_if_set
from storage.schedule import Schedule

READY_S = 600.0
"""Patience with the servers: their first start makes databases."""


class Deployer:
    """The process: what it found out, step by step."""

    def __init__(self, process: Process, steps: IO[bytes], log: Path, stop: Event) -> None:
        self._process, self._steps, self._log, self._stop = process, steps, log, stop

    def checked(self) -> list[str]:
        """Wait until the setting is checked; returns notes on it.

        Raises:
            ValueError: the scheduled flows could not run with it.
            RuntimeError: the process ended; the message has its last lines.
        """
        return self._step("checked")

    def deployed(self) -> list[str]:
        """Wait until everything is deployed; returns notes for the person who deploys.

        Raises:
            ValueError: a setting cannot be deployed.
            RuntimeError: a server refused something; the message has the last lines of the log.
        """
        return self._step("deployed")

    def _step(self, name: str) -> list[str]:
        while not select.select([self._steps], [], [], 0.2)[0]:
            raise_if_set(self._stop)
        line = self._steps.readline()
        if not line:
            self._process.wait()
            raise RuntimeError(f"deploying failed, so no flow can be started: {last_lines(self._log)}; see {self._log}")
        step = json.loads(line)
        if "refused" in step:
            raise ValueError(step["refused"])
        return list(step[name])


@contextmanager
def deployer(
    schedule: Schedule,
    environment: Mapping[str, str],
    logs: Path,
    *,
    measures_here: bool,
    given: Collection[str],
    stop: Event,
) -> Iterator[Deployer]:
    """Run the process while the block runs.

    Args:
        environment: names the servers, which need not answer yet, and the home.
        measures_here: this machine runs the flows.
        given: fields of the schedule that somebody typed just now.
        stop: ends the waiting for steps with `StoppedError` once it is set.
    """
    logs.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"schedule": asdict(schedule), "measures_here": measures_here, "given": list(given)})
    log = logs / "deploy.log"
    receiver, sender = os.pipe()
    with log.open("ab") as stderr, os.fdopen(sender, "wb") as stdout, TemporaryFile() as request:
        request.write(content.encode())
        request.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.servers.deploying"],
            env=environment,
            cwd=PROJECT,
            stdin=request,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    with os.fdopen(receiver, "rb", buffering=0) as steps:
        try:
            yield Deployer(process, steps, log, stop)
        finally:
            end(process)


def _run(request: Mapping[str, Any]) -> None:
    """What the process does."""
    said = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else prints goes to the log

    def say(step: str, content: object) -> None:
        said.write(json.dumps({step: content}) + "\n")
        said.flush()

    schedule = Schedule(**request["schedule"])
    try:
        if schedule == Schedule():
            say("checked", [])  # before torch is loaded
        from flows.servers import deployment

        measures_here = bool(request["measures_here"])
        notes = deployment.check(schedule, measures_here=measures_here, environ=os.environ)
        if schedule != Schedule():
            say("checked", notes)
        notes = deployment.deploy(
            schedule, os.environ, given=request["given"], measures_here=measures_here, patience_s=READY_S
        )
        say("deployed", notes)
    except ValueError as error:
        say("refused", str(error))


if __name__ == "__main__":
    _run(json.load(sys.stdin))
