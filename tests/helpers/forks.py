"""Commands and questions in forks of one process that has imported everything, for trials with many of them.

A command of its own would import for seconds and start a Prefect server of its own each time. Its forks share the server of
`prefect_server`. Forks come from Python's fork server, a new process without threads, whatever this one does.
"""

import atexit
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from tests.helpers.quiet import CALLERS, QUIET

_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(
    [
        *("flows.cli.app", "flows.retrain", "flows.reports.plan_view.page", "storage.notebook"),
        *("flows.reports.report_tables", "dreamshard.rivals.torchrec_planner", "torchrec", "torch._dynamo"),
        *("bokeh.plotting", "bokeh.embed", "scipy.stats", "matplotlib.figure", "matplotlib.backends.backend_agg"),
        *("mlflow.store.db.utils", "mlflow.store.tracking.sqlalchemy_store", "alembic.command", __name__),
    ]
)
_LONGEST_S = 600.0
_prefect_homes: list[str] = []  # the fork server keeps the environment in which it started


class Running(Protocol):
    """A command that runs in a process group of its own."""

    pid: int

    def wait(self, seconds: float) -> int | None:
        """Its exit code, negative for a signal; None if it has not ended in time."""
        ...

    def said(self) -> str:
        """What it has printed so far."""
        ...


@dataclass(frozen=True)
class Forked:
    """A command in a fork."""

    process: Any
    log: Path

    @property
    def pid(self) -> int:
        """Its number."""
        return int(self.process.pid)

    def wait(self, seconds: float) -> int | None:
        """See `Running`."""
        self.process.join(seconds)
        code: int | None = self.process.exitcode
        return code

    def said(self) -> str:
        """See `Running`."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@dataclass(frozen=True)
class Started:
    """A command started as a person starts it."""

    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    def wait(self, seconds: float) -> int | None:
        """See `Running`."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def said(self) -> str:
        """See `Running`."""
        return self.log.read_text(errors="replace")


@contextmanager
def environment() -> Iterator[None]:
    """The environment of forks and of started commands: no telemetry, and nothing of the caller's own stores."""
    if not _prefect_homes:
        _prefect_homes.append(tempfile.mkdtemp(prefix="dreamshard-forks-"))
        atexit.register(shutil.rmtree, _prefect_homes[0], ignore_errors=True)
    before = dict(os.environ)
    os.environ.update(QUIET, PREFECT_HOME=_prefect_homes[0])
    for name in CALLERS:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def prefect_server() -> Iterator[int]:
    """The port of a temporary Prefect server for forks, as a command starts one for itself."""
    ours, theirs = _FORK.Pipe()
    process = _FORK.Process(target=_keep_prefect, args=(os.environ["PREFECT_HOME"], theirs))
    process.start()
    theirs.close()
    try:
        yield int(ours.recv())
    finally:
        ours.close()
        process.join(60)


def forked(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    port: int,
    log: Path,
    before: Callable[[], None] | None = None,
) -> Forked:
    """Start `dreamshard` with these arguments on the Prefect server of this port; `before` is called there first."""
    process = _FORK.Process(target=_run, args=(list(arguments), dict(environment), port, str(log), before))
    process.start()
    return Forked(process, log)


def started(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Started:
    """Start `dreamshard` with these arguments as a process of its own, which starts its own Prefect server."""
    everything = {name: value for name, value in os.environ.items() if name != "PREFECT_HOME"} | dict(environment)
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", "from flows.cli.app import main; main()", *arguments],
            env=everything,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    return Started(process, log)


def answer(question: Callable[..., Any], environment: Mapping[str, str], *given: object) -> Any:
    """What a function of a module answers in a fork with this environment.

    Raises:
        RuntimeError: it raised an error, which the message names.
    """
    ours, theirs = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_answer, args=(question, dict(environment), given, theirs))
    process.start()
    theirs.close()
    try:
        found, error = ours.recv() if ours.poll(_LONGEST_S) else (None, f"no answer within {_LONGEST_S:g} s")
    except EOFError:
        found, error = None, "its process ended without a word"
    if error:
        process.kill()
        process.join()
        raise RuntimeError(f"{question.__name__}: {error}")
    process.join()
    return found


def kill(running: Running, *, group: bool) -> None:
    """Kill -9 the process, or its whole group; nothing if it has ended."""
    with suppress(ProcessLookupError):
        if group and os.getpgid(running.pid) == running.pid:
            os.killpg(running.pid, signal.SIGKILL)
        else:
            os.kill(running.pid, signal.SIGKILL)


def _keep_prefect(home: str, connection: Connection) -> None:
    os.setsid()
    os.environ["DREAMSHARD_HOME"] = home
    from prefect.server.api.server import SubprocessASGIServer

    with SubprocessASGIServer() as server:
        connection.send(server.port)
        with suppress(EOFError):
            connection.recv()


def _run(
    arguments: list[str], environment: dict[str, str], port: int, log: str, before: Callable[[], None] | None
) -> None:
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())
    os.environ.update(environment)
    from prefect.server.api.server import SubprocessASGIServer

    from flows.cli.app import main

    server = SubprocessASGIServer()
    server.port, server.running = port, True
    server.server_process = subprocess.Popen(["true"])  # Prefect asks for one; this process never ends the server
    if before is not None:
        before()
    code = 0
    try:
        main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:  # noqa: BLE001 - as the interpreter does: the hook shows it, and the exit code is 1
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _answer(
    question: Callable[..., Any], environment: dict[str, str], given: tuple[object, ...], connection: Connection
) -> None:
    os.setsid()
    os.environ.update(environment)
    try:
        connection.send((question(*given), ""))
    except Exception as error:  # noqa: BLE001 - it is the answer
        connection.send((None, f"{type(error).__name__}: {error}"))
    connection.close()
    os._exit(0)
