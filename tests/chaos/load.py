"""Load on the lake: writers, readers and compactions at once for minutes; and queries of very many small files, compacted.

Writers keep samples as a training does, one file each at once and an iteration together. Each sample's task names its number,
so that one that is missing or twice is found at the end, and a reader knows what it must not see less of.
"""

import itertools
import multiprocessing
import os
import random
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path

import torch

from dreamshard.tasks import PlacementTask
from dreamshard.workloads import dataset_version
from storage import load
from storage.lake import catalog, collecting
from storage.lake.compaction import STAGING, compact
from storage.settings import Settings
from storage.store import Store, open_store
from tests.benchmarks.bench_catalog import QUERIES
from tests.chaos.survived import Survived
from tests.helpers.many_samples import write_sample_files
from tests.helpers.samples import four_tables, make_sample

WRITERS, READERS = 8, 8
SECONDS, FILES = 300, 100_000
_PER_ITERATION = 5
_COMPACT_EVERY_S = 5.0
_START_S = 600.0  # until all processes have begun, on a busy machine
_COUNTS = "select run_key, count(*) as n, count(distinct sample_id) as distinct_n from cost_samples group by 1"
_DEVICES = "select count(*) as n, count(distinct sample_id) as samples from device_costs"
_FROM_SERVER = multiprocessing.get_context("forkserver")


@dataclass
class _Did:
    """What one process did.

    Attributes:
        who: `writer 3`, `reader 0`.
        count: samples written, or queries answered.
        times_ms: of queries.
        compactions: that changed a folder.
        problems: in words.
    """

    who: str
    count: int = 0
    times_ms: list[float] = field(default_factory=list)
    compactions: int = 0
    problems: list[str] = field(default_factory=list)


def run(scale: float, seed: int) -> list[Survived]:
    """Rows for the minutes of load, and for the many files."""
    torch.set_num_threads(1)
    return [*_at_once(SECONDS * scale, seed), *_many_files(max(500, round(FILES * scale)))]


def _home(folder: str) -> Store:
    return open_store(Settings.from_environment({"DREAMSHARD_HOME": folder}))


def _at_once(seconds: float, seed: int) -> list[Survived]:
    with tempfile.TemporaryDirectory() as folder:
        store, tables = _home(folder), four_tables()
        store.lake.write_dataset(tables, dataset_version(tables), "by hand")
        _FROM_SERVER.set_forkserver_preload([__name__])
        answers: Queue[_Did] = _FROM_SERVER.Queue()
        gate = _FROM_SERVER.Barrier(WRITERS + READERS)
        roles = [(_write, n) for n in range(WRITERS)] + [(_read, n) for n in range(READERS)]
        processes = [
            _FROM_SERVER.Process(target=_role, args=(role, folder, n, seconds, seed, gate, answers))
            for role, n in roles
        ]
        for process in processes:
            process.start()
        try:
            did = [answers.get(timeout=_START_S + 10 * seconds) for _ in processes]
            for process in processes:
                process.join()
        finally:
            for process in processes:
                process.kill()
        return _rows_at_once(store, did, seconds)


def _role(
    role: "Callable[[Store, int, float, int, _Did], None]",
    folder: str,
    number: int,
    seconds: float,
    seed: int,
    gate: "multiprocessing.synchronize.Barrier",
    answers: "Queue[_Did]",
) -> None:
    torch.set_num_threads(1)
    store, did = _home(folder), _Did(f"{'writer' if role is _write else 'reader'} {number}")
    gate.wait(_START_S)
    try:
        role(store, number, time.monotonic() + seconds, seed, did)
    except Exception as error:  # noqa: BLE001 - every error is a row that was not survived
        did.problems.append(f"{did.who}: {type(error).__name__}: {error}")
    answers.put(did)


def _write(store: Store, number: int, until: float, _seed: int, did: _Did) -> None:
    tables = four_tables()
    version = dataset_version(tables)
    for iteration in itertools.count(1):
        if time.monotonic() > until:
            return
        with collecting(store.lake, _run(number), iteration, version) as keep:
            for _ in range(_PER_ITERATION):
                task = PlacementTask(tables, 2, 10**6, name=str(did.count))
                keep(make_sample(task, [0, 1, 0, 1]))
                did.count += 1


def _read(store: Store, number: int, until: float, seed: int, did: _Did) -> None:
    """Ask what every reader asks, in an order of its own; reader 0 also compacts now and then."""
    draw, seen, compacted = random.Random(f"{seed} {number}"), Counter[str](), time.monotonic()
    while time.monotonic() < until:
        if number == 0 and time.monotonic() > compacted + _COMPACT_EVERY_S:
            did.compactions += len(compact(store.lake))
            compacted = time.monotonic()
        began = time.perf_counter()
        problem = draw.choice(_QUESTIONS)(store, seen)
        did.times_ms.append(1e3 * (time.perf_counter() - began))
        did.count += 1
        if problem:
            did.problems.append(f"reader {number}: {problem}")


def _run(writer: int) -> str:
    return f"writer {writer}"


def _counts(store: Store, seen: Counter[str]) -> str:
    """By SQL: nothing twice, and of no writer less than before."""
    found = catalog.query(store.settings, _COUNTS)
    return next((problem for row in found if (problem := _less(row["run_key"], row["n"], row["distinct_n"], seen))), "")


def _frame(store: Store, seen: Counter[str]) -> str:
    """The view as a data frame."""
    found = load.cost_samples(home=store.settings.home)
    counts, distinct = Counter(found["run_key"]), Counter(found.drop_duplicates("sample_id")["run_key"])
    return next((problem for run, n in counts.items() if (problem := _less(run, n, distinct[run], seen))), "")


def _samples(store: Store, seen: Counter[str]) -> str:
    """One writer's samples as a training reads its own."""
    run = _run(random.Random(sum(seen.values())).randrange(WRITERS))
    names = [sample.task.name for sample in store.lake.read_cost_samples(run)]
    return _less(run, len(names), len(set(names)), seen)


def _devices(store: Store, _seen: Counter[str]) -> str:
    """Each sample has its two devices."""
    [row] = load.query(_DEVICES, home=store.settings.home).to_dict("records")
    return "" if row["n"] == 2 * row["samples"] else f"{row['n']} devices of {row['samples']} samples"


_QUESTIONS = (_counts, _frame, _samples, _devices)


def _less(run: str, found: int, distinct: int, seen: Counter[str]) -> str:
    before, seen[run] = seen[run], max(found, seen[run])
    if found != distinct:
        return f"{found - distinct} samples of {run} twice"
    return f"{before - found} samples of {run} fewer than before" if found < before else ""


def _rows_at_once(store: Store, did: list[_Did], seconds: float) -> list[Survived]:
    [written] = load.query("select count(*) as n from cost_samples", home=store.settings.home)["n"]
    once = total = 0
    writers = {each.who: each for each in did if each.who.startswith("writer")}
    for who, each in writers.items():
        names = Counter(sample.task.name for sample in store.lake.read_cost_samples(who))
        total += each.count
        once += sum(names[str(number)] == 1 for number in range(each.count))
    others = f"; {written - total} that nobody wrote" if written > total else ""
    readers = [each for each in did if each.who not in writers]
    problems = [problem for each in did for problem in each.problems]
    asked, times = sum(each.count for each in readers), [ms for each in readers for ms in each.times_ms]
    of_readers = [problem for each in readers for problem in each.problems]
    beside = f"beside {READERS} readers and {sum(each.compactions for each in readers)} compactions, {seconds:.0f} s"
    p50 = statistics.median(times) if times else 0.0
    return [
        Survived(
            what=f"samples of {WRITERS} writers at once",
            tried=total,
            survived=once if not others and len(problems) == len(of_readers) else 0,
            note="; ".join([beside + others, *(set(problems) - set(of_readers))])[:500],
        ),
        Survived(
            what=f"queries of {READERS} readers meanwhile",
            tried=asked,
            survived=asked - len(of_readers),
            note="; ".join([f"p50 {p50:.0f} ms", *of_readers[:2]])[:500],
        ),
    ]


def _many_files(count: int) -> list[Survived]:
    """Before and after a compaction that is killed once."""
    with tempfile.TemporaryDirectory() as name:
        store = _home(name)
        folder = write_sample_files(store.lake, count)
        before_ms = _query_ms(store, next(iter(QUERIES.values()))[0], repeats=1)
        killed = _killed_compaction(name, store)
        files_killed = len(list(folder.glob("*.parquet")))
        began = time.perf_counter()
        compact(store.lake)
        spent = time.perf_counter() - began
        [row] = catalog.query(store.settings, _DEVICES)
        rows_ok = (row["n"], row["samples"]) == (2 * count, count)
        slow, shares = [], []
        for query, (sql, bar) in QUERIES.items():
            own = sql.replace("simulated:1", "simulated:h100").replace("'v3'", f"'{folder.name}'")
            taken = _query_ms(store, own, repeats=5)
            if bar is not None:
                shares.append(f"{taken / bar:.2f} of the bar of {bar:g} ms ({query})")
                slow += [query] if taken > bar else []
        after_ms = _query_ms(store, next(iter(QUERIES.values()))[0], repeats=5)
        left = len(list(folder.glob("*.parquet")))
    bars = sum(bar is not None for _, bar in QUERIES.values())
    return [
        Survived(
            what="samples in as many files, after a compaction that was killed once and one that ended",
            tried=count,
            survived=row["samples"] if rows_ok and killed and files_killed in (count, left) else 0,
            note=f"{count:,} files became {left} in {spent:.0f} s; killed {'while it merged' if killed else 'too late'}",
        ),
        Survived(
            what="queries of them within the bars of the benchmarks",
            tried=bars,
            survived=bars - len(slow),
            note=f"counting all took {before_ms / after_ms:,.0f} times as long before; now " + ", ".join(shares),
        ),
    ]


def _query_ms(store: Store, sql: str, repeats: int) -> float:
    """The best of some times, as the benchmarks take them."""
    taken = []
    with catalog.connect(store.settings) as connection:
        for _ in range(repeats):
            began = time.perf_counter()
            connection.execute(sql).fetchall()
            taken.append(1e3 * (time.perf_counter() - began))
    return min(taken)


def _killed_compaction(folder: str, store: Store) -> bool:
    """Kill -9 a compaction once it has begun to merge; whether it was still at it."""
    process: BaseProcess = _FROM_SERVER.Process(target=_compact, args=(folder,))
    process.start()
    assert process.pid is not None
    assert isinstance(store.settings.lake_root, Path)
    staging = store.settings.lake_root / STAGING
    while process.is_alive() and not any(_files(staging)):
        time.sleep(0.005)
    was_alive = process.is_alive()
    if was_alive:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return was_alive and process.exitcode == -signal.SIGKILL


def _files(folder: Path) -> Iterator[Path]:
    return folder.rglob("*merged*") if folder.is_dir() else iter(())


def _compact(folder: str) -> None:
    compact(_home(folder).lake)
