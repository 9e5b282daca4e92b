"""Well-formed input that says something wrong, for every reader, drawn and made smaller by Hypothesis.

What is not survived is kept in the file that the row names.
"""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.chaos.readers import judge, known
from tests.chaos.survived import Survived
from tests.helpers.damaged_reading import Reader
from tests.helpers.wrong_content import wrong_content

INPUTS = 10_000  # of each reader, at about 160 a second and core
_CHUNK = 5_000  # Hypothesis remembers what it has drawn
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class _Tried:
    count: int
    problem: str | None = None
    content: bytes = b""


class _NotSurvivedError(Exception):
    """What Hypothesis looks for a smaller input of."""


def run(scale: float, seed: int) -> list[Survived]:
    """A row per reader."""
    torch.set_num_threads(1)
    readers = [known()[name] for name in sorted(known())]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(lambda reader: _row(reader, reader.inputs_of(INPUTS, scale), seed), readers))


def _row(reader: Reader, count: int, first_seed: int) -> Survived:
    """Try chunks until all are tried, or one has found something; each is a process of its own."""
    tried = 0
    for chunk, start in enumerate(range(0, count, _CHUNK)):
        found = _tried(reader, min(_CHUNK, count - start), first_seed + chunk)
        tried += found.count
        if found.problem is not None:
            kept = reader.kept_by("fuzzed")
            kept.write_bytes(found.content)
            note = f"{found.problem}; seed {first_seed + chunk}, kept in {kept}"[:500]
            return Survived(what=f"wrong content: {reader.name}", tried=tried, survived=tried - 1, note=note)
    return Survived(what=f"wrong content: {reader.name}", tried=tried, survived=tried)


def _tried(reader: Reader, count: int, chunk_seed: int) -> _Tried:
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_try, args=(reader, count, chunk_seed, sender))
    process.start()
    sender.close()
    last = _Tried(0)
    try:
        for last in _received(receiver):
            if last.problem is not None or not last.content:
                return last
    finally:
        process.join()
        receiver.close()
    return _Tried(last.count, f"ends the process ({process.exitcode})", last.content)


def _received(receiver: Connection) -> Iterator[_Tried]:
    try:
        while True:
            yield receiver.recv()
    except EOFError:
        return


def _try(reader: Reader, count: int, chunk_seed: int, results: Connection) -> None:
    """In a process of its own: send each input before it is tried, then what was found, made as small as can be."""
    tried, found = 0, _Tried(0)

    @seed(chunk_seed)
    @settings(
        max_examples=count, database=None, deadline=None, phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
    )  # fmt: skip
    @given(wrong_content(reader))
    def all_survived(content: bytes) -> None:
        nonlocal tried, found
        tried += found.problem is None  # those by which it is made smaller do not count
        results.send(_Tried(tried, None, content))
        if (problem := wrong_with(content)) is not None:
            found = _Tried(tried, problem, content)
            raise _NotSurvivedError(problem)

    with judge(reader) as wrong_with, suppress(_NotSurvivedError):
        all_survived()
    results.send(found if found.problem is not None else _Tried(tried))
