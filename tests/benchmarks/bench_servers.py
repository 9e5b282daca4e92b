"""`dreamshard up`: seconds until everything answers, memory, and CPU while nothing happens.

The first start makes two databases. CPU seconds and memory are summed over the process and all its descendants. Memory is
the proportional set size: pages that several processes share count once. Wall seconds mean something on an idle machine only.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tests.benchmarks.measuring import Row, row
from tests.helpers.ports import free_port

SETTLE_S = 60.0
"""After the start: the worker connects and the first scheduled runs are made."""


def rows(quick: bool = False) -> Iterator[Row]:
    """The first start of a home, the second, and then two minutes without work."""
    idle_s = 30.0 if quick else 120.0
    with TemporaryDirectory() as folder:
        for name in ("first", "second"):
            with _up(Path(folder)) as (family, ready_s):
                yield row(f"{name} start until everything answers, wall", ready_s, "s", 30.0)
                yield row("- CPU of all processes until then", _cpu_s(family()), "s CPU")
                if name == "second":
                    time.sleep(5.0 if quick else SETTLE_S)
                    memory = sum(each.memory_full_info().pss for each in family())
                    yield row("memory of all processes", memory / 2**20, "MiB", 1024.0)
                    began, since = _cpu_s(family()), time.monotonic()
                    time.sleep(idle_s)
                    share = (_cpu_s(family()) - began) / (time.monotonic() - since)
                    yield row("CPU while nothing happens", 100 * share, "% of a core", 1.0)


@contextmanager
def _up(home: Path) -> Iterator[tuple[Callable[[], list[psutil.Process]], float]]:
    """A running `up`: a function that lists its processes, and the wall seconds until it was ready."""
    ports = ["--prefect-port", str(free_port()), "--mlflow-port", str(free_port())]
    command = [sys.executable, "-m", "flows.cli.app", "up", "--home", str(home), *ports]
    environment = {name: value for name, value in os.environ.items() if name not in ("PREFECT_HOME", "DREAMSHARD_HOME")}
    began = time.monotonic()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = next((line for line in process.stdout if line.startswith("Start")), None)
            if said is None:
                raise RuntimeError(f"`up` ended while starting; see {home / 'logs'}")
            ready_s, parent = time.monotonic() - began, psutil.Process(process.pid)
            yield lambda: [parent, *parent.children(recursive=True)], ready_s
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def _cpu_s(family: list[psutil.Process]) -> float:
    """CPU seconds of processes that run, and of children of theirs that ended."""
    return float(sum(sum(each.cpu_times()[:4]) for each in family))
