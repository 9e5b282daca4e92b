"""Ranks on this host, started and reaped by torch.distributed's elastic launcher.

It runs in a thread, because it returns only when the ranks have ended.
"""

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dreamshard.testbeds.cluster.messages import STAGES, Hello
from dreamshard.testbeds.cluster.rank import Start
from dreamshard.testbeds.cluster.rank_launcher import RankExit, RankTrouble
from dreamshard.testbeds.cluster.reception import Reception

START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 10.0
LOG_LINES = 60
START_FILE = "start.json"


class LocalLauncher:
    """Starts `num_ranks` ranks on this host once.

    Args:
        look_for_gpu: whether ranks run on GPUs.
    """

    def __init__(self, num_ranks: int, *, look_for_gpu: bool) -> None:
        self.num_ranks = num_ranks
        self.start_timeout_s = START_TIMEOUT_S
        self._look_for_gpu = look_for_gpu
        self._files = ExitStack()
        self._folder = Path(self._files.enter_context(TemporaryDirectory()))  # only this user can read it
        self._start_file = self._folder / START_FILE
        self._pids: dict[int, int] = {}
        self._failures: dict[int, ProcessFailure] = {}
        self._launch_error = ""
        self._ended, ended_writer = Pipe(duplex=False)  # readable when the launcher has ended
        self._thread = threading.Thread(target=self._launch, args=(ended_writer,), daemon=True)

    def start(self, reception: Reception) -> None:
        """See `RankLauncher`."""
        start = Start(
            address=reception.address,
            port=reception.port,
            key=reception.key.hex(),
            path=[str(folder) for folder in sys.path],
            host=socket.gethostname(),
            look_for_gpu=self._look_for_gpu,
            folder=str(self._folder),
        )
        self._start_file.write_text(start.to_json())
        self._thread.start()

    def signals(self) -> Sequence[Connection]:
        """See `RankLauncher`."""
        return [self._ended]

    def check(self, missing: Iterable[int]) -> None:
        """See `RankLauncher`; all ranks end together."""
        rank = min(missing)
        raise RankTrouble(rank, STAGES[0], "it ended before it was ready", self._launch_error or self.log_of(rank))

    def admit(self, connection: Connection, message: object) -> None:
        """See `RankLauncher`; on this host nobody else calls."""
        connection.close()

    def ready(self, hello: Hello) -> None:
        """See `RankLauncher`."""
        self._pids[hello.rank] = hello.pid

    def exit_of(self, rank: int) -> RankExit:
        """See `RankLauncher`; ends the other ranks."""
        self._kill(all_but=rank)
        self._wait(END_TIMEOUT_S)
        ended_first = [other for other, failure in self._failures.items() if failure.exitcode != -signal.SIGTERM]
        if ended_first and rank not in ended_first:
            rank = min(ended_first)  # the launcher ended `rank`, with SIGTERM, because this one had failed
        failure = self._failures.get(rank)
        return RankExit(rank, describe_exit(None if failure is None else failure.exitcode), self.log_of(rank))

    def log_of(self, rank: int) -> str:
        """See `RankLauncher`; only stderr."""
        logs = sorted(self._folder.glob(f"*/attempt_*/{rank}/stderr.log"))
        return last_lines("\n".join(log.read_text(errors="replace") for log in logs))

    def end(self, *, gently: bool) -> None:
        """See `RankLauncher`."""
        if not gently or not self._wait(END_TIMEOUT_S):
            self._kill()
            self._wait(END_TIMEOUT_S)
        self._ended.close()
        self._files.close()

    def _launch(self, ended: Connection) -> None:
        """Run the elastic launcher until all ranks have ended."""
        for chatty in ("torch.distributed.elastic", "torchelastic-events-null"):
            logging.getLogger(chatty).setLevel(logging.CRITICAL)  # failures are reported from here
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self.num_ranks,
            run_id=f"dreamshard-{os.getpid()}-{secrets.token_hex(4)}",
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=str(self._folder), redirects=Std.ALL),
        )
        program = ("-m", "dreamshard.testbeds.cluster.rank", str(self._start_file))
        try:
            elastic_launch(config, sys.executable)(*program)
        except ChildFailedError as error:
            self._failures = dict(error.failures)
        except (RuntimeError, OSError) as error:
            self._launch_error = f"{type(error).__name__}: {error}"
        finally:
            ended.close()

    def _kill(self, all_but: int | None = None) -> None:
        """End the ranks, those too that have not said that they are ready."""
        spared = None if all_but is None else self._pids.get(all_but)
        for process in psutil.Process().children():
            with suppress(psutil.Error):  # it has ended
                if process.pid != spared and str(self._start_file) in process.cmdline():
                    process.kill()

    def _wait(self, timeout_s: float) -> bool:
        """Whether the launcher, and so all ranks, ended in time."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()


def describe_exit(exit_code: int | None) -> str:
    """What a process's exit code says, for people; None if it is not known."""
    if exit_code is None:
        return "it ended"
    if exit_code >= 0:
        return f"it exited with code {exit_code}"
    killed = f"it was killed by {signal.Signals(-exit_code).name}"
    return killed + (", as the system does when it runs out of memory" if exit_code == -signal.SIGKILL else "")


def last_lines(text: str) -> str:
    """The end of a log."""
    return "\n".join(text.splitlines()[-LOG_LINES:])
