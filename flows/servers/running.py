"""Which servers run for a home: `up` writes it into the home, a second `up`, `doctor` and `models` read it."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "up.json"


@dataclass(frozen=True, kw_only=True)
class Running:
    """A running `up`: its process and the addresses of Prefect's and MLflow's pages."""

    pid: int
    prefect: str
    mlflow: str


def find(home: Path) -> Running | None:
    """The `up` of this home; None if it does not run."""
    if not (home / FILE).exists():
        return None
    with (home / FILE).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # its `up` holds it, however it ends
        except BlockingIOError:
            return Running(**json.load(file))
    return None


@contextmanager
def only_one(home: Path, prefect: str, mlflow: str) -> Iterator[None]:
    """Run the block as the only `up` of this home on this host.

    Raises:
        ValueError: another one runs.
    """
    with (home / FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            other = Running(**json.load(file))
            raise ValueError(
                f"`dreamshard up` runs for {home} already; use Prefect at {other.prefect} and MLflow at {other.mlflow}, or "
                f"end it: kill {other.pid}"
            ) from None
        file.truncate(0)
        json.dump(asdict(Running(pid=os.getpid(), prefect=prefect, mlflow=mlflow)), file)
        file.flush()
        yield
