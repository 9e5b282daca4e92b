"""The process that a launcher starts on each host for each rank: it starts and ends that rank as the testbed asks.

Ranks come and go with failures, while the launcher's processes stay: a failed measurement needs no new job.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait

from dreamshard.testbeds.cluster import messages, reception
from dreamshard.testbeds.cluster.launch import END_TIMEOUT_S, last_lines
from dreamshard.testbeds.cluster.rank import Start


@dataclass(frozen=True)
class Place:
    """Where a keeper is.

    Attributes:
        rank: number that the launcher gave it; the rank that it keeps has the same.
        local_rank: number on its host.
        host: name of the machine, or of what stands for one.
    """

    rank: int
    local_rank: int
    host: str


class Keeper:
    """Keeps the rank of `place` for the testbed at `address`.

    Raises:
        OSError: nothing listens there.
        AuthenticationError: the testbed there has another key.
    """

    def __init__(self, place: Place, address: str, port: int, key: bytes) -> None:
        self._start = Start(
            address=address,
            port=port,
            key=key.hex(),
            path=[str(folder) for folder in sys.path],
            host=place.host,
            look_for_gpu=True,
            rank=place.rank,
            local_rank=place.local_rank,
        )
        self._connection = reception.connect(address, port, key)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the keeper runs
        self._rank: subprocess.Popen[str] | None = None
        reception.send(self._connection, messages.KeeperHello(place.rank, place.host))

    def run(self) -> bool:
        """Do what the testbed asks until it has ended; whether what it was needed for succeeded."""
        try:
            while True:
                with _Exit(self._rank) as exited:
                    ready = wait([self._connection, *exited])
                if self._connection not in ready:
                    self._report(was_asked=False)
                    continue
                message = pickle.loads(self._connection.recv_bytes())
                if isinstance(message, messages.Goodbye):
                    return message.done
                if isinstance(message, messages.StartRank):
                    self._kill()
                    self._begin()
                elif isinstance(message, messages.EndRank):
                    self._end(gently=message.gently)
        except (EOFError, OSError):
            return False
        finally:
            self._kill()
            self._connection.close()
            self._log.close()

    def _begin(self) -> None:
        self._log.seek(0)
        self._log.truncate()
        self._rank = subprocess.Popen(
            [sys.executable, "-m", "dreamshard.testbeds.cluster.rank", "-"],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, self._start.path))},
        )
        if self._rank.stdin is not None:
            self._rank.stdin.write(self._start.to_json() + "\n")
            self._rank.stdin.flush()  # it stays open: the rank ends when it closes

    def _end(self, *, gently: bool) -> None:
        if self._rank is not None:
            with suppress(subprocess.TimeoutExpired):
                self._rank.wait(END_TIMEOUT_S if gently else 0)
            self._rank.kill()
        self._report(was_asked=True)

    def _report(self, *, was_asked: bool) -> None:
        """Tell the testbed how the rank, which is ending, ended."""
        exit_code = None if self._rank is None else self._rank.wait()
        self._log.seek(0)
        log = last_lines(self._log.read().decode(errors="replace"))
        self._kill()
        reception.send(self._connection, messages.RankEnded(exit_code, log, was_asked))

    def _kill(self) -> None:
        if self._rank is not None:
            self._rank.kill()
            self._rank.wait()
            if self._rank.stdin is not None:
                self._rank.stdin.close()
            self._rank = None


class _Exit:
    """A handle, if there is a process, that is readable once it has ended."""

    def __init__(self, process: subprocess.Popen[str] | None) -> None:
        self._handles = [] if process is None else [os.pidfd_open(process.pid)]

    def __enter__(self) -> list[int]:
        return self._handles

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            os.close(handle)
