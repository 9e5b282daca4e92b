"""Which servers run for a home: `up` writes it into the home, a second `up` and `doctor` read it.

The record is locked while `up` runs, so one that was killed is known from one that runs, whatever process has its number now.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from dreamshard.files import atomic
from storage.mlflow_store import process_tags

FILE = "up.json"
LOCK = "up.lock"


@dataclass(frozen=True, kw_only=True)
class Running:
    """What `up` wrote about itself.

    Attributes:
        pid: of the process `up`.
        since: when it started, ISO 8601 with the time zone.
        prefect: address of Prefect's UI.
        mlflow: address of MLflow.
        processes: identity of each process by name, in words (`process_tags.identity`), to find what a killed `up` left.
        alive: whether `up` runs; otherwise it was killed.
    """

    pid: int
    since: str
    prefect: str
    mlflow: str
    processes: Mapping[str, Sequence[str | float]]
    alive: bool

    @property
    def left_behind(self) -> dict[str, int]:
        """The pids of its processes that still run, by name."""
        identities = {name: " ".join(map(str, words)) for name, words in self.processes.items()}
        return {name: int(each.split()[0]) for name, each in identities.items() if process_tags.is_alive(each)}


def find(home: Path) -> Running | None:
    """What runs for this home, or what a killed `up` left behind; None if it ended in order or never ran."""
    try:
        written = json.loads((home / FILE).read_text())
    except FileNotFoundError:
        return None
    return Running(**written, alive=_is_locked(home / LOCK))


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Run the block as the only `up` of this home on this host.

    Raises:
        ValueError: another one runs, or one that was killed left servers running.
    """
    with (home / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(_refusal(home)) from None
        earlier = find(home)
        if earlier is not None and (left := earlier.left_behind):
            raise ValueError(
                f"an earlier `dreamshard up` of the home {home} was killed, and its servers still write to its databases; "
                f"end them first: kill {' '.join(map(str, left.values()))}"
            )
        try:
            yield
        finally:
            (home / FILE).unlink(missing_ok=True)


def record(home: Path, prefect: str, mlflow: str, processes: Mapping[str, int]) -> None:
    """Write what runs; inside of `only_one`."""
    started = datetime.fromtimestamp(psutil.Process().create_time(), UTC)
    content = {
        "pid": os.getpid(),
        "since": started.astimezone().isoformat(timespec="seconds"),
        "prefect": prefect,
        "mlflow": mlflow,
        "processes": {name: process_tags.identity(psutil.Process(pid)).split() for name, pid in processes.items()},
    }
    atomic.write(home / FILE, json.dumps(content, indent=2))


def _refusal(home: Path) -> str:
    running = find(home)
    if running is None:  # it has the lock and not yet its servers
        return (
            f"another `dreamshard up` is starting for the home {home}, and two would share its databases; wait for it"
        )
    return (
        f"`dreamshard up` runs for the home {home} already (process {running.pid}, since {running.since}), and two would "
        f"share its databases; use Prefect at {running.prefect} and MLflow at {running.mlflow}, or end it first: kill "
        f"{running.pid}"
    )


def _is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
