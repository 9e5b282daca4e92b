"""Prefect's temporary server, which flows of a command run on if no other is configured: started in this project's way.

Prefect would start it on a port that another command may take in the meantime, whose server would then be taken for its
own; would start it again without end while it cannot start; and would leave it behind when the command is killed.
"""

import atexit
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from flows.runtime.ending_with_us import ending_with_us
from flows.servers.processes import LOOPBACK, answers, with_project
from flows.servers.starting_alone import database_file, one_start_at_a_time

if TYPE_CHECKING:
    from prefect.server.api.server import SubprocessASGIServer

_OF_PREFECT = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}


def start_it_our_way() -> None:
    """From now on, Prefect starts the temporary server of this process by `start`."""
    from prefect.server.api.server import SubprocessASGIServer

    setattr(SubprocessASGIServer, "start", start)  # noqa: B010 - a method of Prefect's


def start(server: "SubprocessASGIServer", timeout: float | None = None) -> None:
    """Start the server, which ends with this process, and wait until it answers; does nothing if it runs.

    Args:
        server: Prefect's record of it.
        timeout: seconds; by default Prefect's setting.

    Raises:
        ValueError: this user may not write its database.
        RuntimeError: it ended, or did not answer in time.
    """
    if server.running:
        return
    from prefect.settings import get_current_settings

    database_file()
    settings = get_current_settings()
    environment = {**os.environ, **_OF_PREFECT, **settings.to_environment_variables(exclude_unset=True)}
    with socket.socket() as listener:  # bound by us and inherited: nobody else can get this port
        listener.bind((LOOPBACK, 0))
        server.port = listener.getsockname()[1]
        command = [
            sys.executable,
            "-P",
            "-m",
            "flows.servers.temporary_server",
            str(listener.fileno()),
            str(os.getpid()),
        ]
        environment = with_project(environment)

        def begin() -> "subprocess.Popen[bytes]":
            return subprocess.Popen(command, env=environment, pass_fds=[listener.fileno()])

        server.server_process = ending_with_us(begin)
    atexit.register(server.stop)
    server.running = True
    try:
        _wait(
            f"{server.api_url}/health",
            server.server_process,
            timeout or settings.server.ephemeral.startup_timeout_seconds,
        )
    except BaseException:
        server.running = False
        raise


def _wait(url: str, process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not answers(url):
        if process.poll() is not None:
            raise RuntimeError(
                f"Prefect's temporary server ended with exit code {process.returncode} before it answered, so no flow can "
                "run; what it printed says why"
            )
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"Prefect's temporary server did not answer within {timeout_s:.0f} s, so no flow can run; wait until this "
                "machine is less busy, or set PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS higher"
            )
        time.sleep(0.1)


def main() -> None:
    """Serve Prefect's API until this process is ended.

    The arguments are the number under which the socket is inherited, and the process that it is served for. If that was
    killed at once, nobody watches this one yet, so it ends by itself.
    """
    if os.getppid() != int(sys.argv[2]):
        return
    import uvicorn
    from prefect.server.api import server

    one_start_at_a_time()
    config = uvicorn.Config(server.create_app, factory=True, log_level="error", lifespan="on")
    with socket.socket(fileno=int(sys.argv[1])) as listener, suppress(KeyboardInterrupt):
        uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
