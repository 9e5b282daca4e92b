"""All trials by name, and how they are run: one after another, or several at once."""

import importlib
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.chaos.survived import Survived

_NO_TRIALS = ("__init__", "__main__", "survived", "trials")
SHORT = {
    "full_disk": 0.25,
    "fuzzed": 0.1,
    "guided": 0.1,
    "kills": 0.1,
    "load": 0.05,
    "odd_homes": 0.1,
    "placers": 1.0,
    "ranks": 0.15,
    "readers": 1.0,
}
"""Share of each trial's attempts with which all of them take a quarter of an hour on two idle cores."""

_COMPUTING = ("fuzzed", "guided", "placers", "readers")
_GIVES_WAY = 19  # the lowest priority

Trial = Callable[[float, int], list[Survived]]


def names() -> list[str]:
    """The names of all trials, alphabetically."""
    stems = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted(stem for stem in stems if stem not in _NO_TRIALS and not stem.startswith("test_"))


def trial(name: str) -> Trial:
    """The `run` of one trial."""
    found: Trial = importlib.import_module(f"tests.chaos.{name}").run
    return found


def tried(name: str, scale: float, seed: int, load: Callable[[str], Trial] = trial) -> list[Survived]:
    """What a trial found; an error of its own becomes a row that was not survived."""
    try:
        return load(name)(scale, seed)
    except Exception as error:  # noqa: BLE001 - one broken trial must not hide the others; it is a row
        traceback.print_exc(file=sys.stderr)
        return [Survived(what=f"{name} itself", tried=1, survived=0, note=f"{type(error).__name__}: {error}")]


def timed(name: str, scale: float, seed: int) -> tuple[str, list[Survived], float]:
    """The name of a trial, what it found, and its seconds."""
    began = time.perf_counter()
    rows = tried(name, scale, seed)
    return name, rows, time.perf_counter() - began


def all_tried(scales: Mapping[str, float], seed: int, jobs: int) -> Iterator[tuple[str, list[Survived], float]]:
    """Each trial as it ends; with several at once each has a process of its own.

    Trials that only compute run one after another beside the others, which wait much of their time, and give way to them.

    Args:
        scales: share of the attempts of each trial to run.
        seed: of all.
        jobs: trials at once, beside those that only compute.
    """
    computing = {name: scale for name, scale in scales.items() if name in _COMPUTING}
    waiting = {name: scale for name, scale in scales.items() if name not in _COMPUTING}
    if jobs == 1 and not (computing and waiting):
        for name, scale in scales.items():
            yield timed(name, scale, seed)
        return
    with _processes(1, os.nice, (_GIVES_WAY,)) as beside, _processes(jobs) as pool:
        running = [beside.submit(timed, name, scale, seed) for name, scale in computing.items()]
        running += [pool.submit(timed, name, scale, seed) for name, scale in waiting.items()]
        for ended in as_completed(running):
            yield ended.result()


def _processes(
    count: int, begin: Callable[..., object] | None = None, given: tuple[object, ...] = ()
) -> ProcessPoolExecutor:
    spawned = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, mp_context=spawned, initializer=begin, initargs=given, max_tasks_per_child=1)
