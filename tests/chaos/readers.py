"""Damaged input for every reader: 100,000 files each, of what others write, and 10,000 of a home's own files.

They are read in processes of their own, so that a crash is one input.

Input `i` of chunk `c` is drawn from the seed `f"{seed} {reader} {c}"`, so what a row names can be had again:

    python -c "from tests.chaos.readers import shown; shown('plans', seed=1, chunk=0, number=17)" > input.json
"""

import logging
import multiprocessing
import os
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice, repeat
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

import torch

from tests.chaos.survived import Survived
from tests.helpers.damaged_reading import Reader, problem
from tests.helpers.foreign_files import readers

INPUTS = 100_000
_CHUNK = 5_000
MOST_MIB = 1024  # of memory beside what there was before
_ADDRESSES = 12 * 2**30  # keeps a failure of this trial from ending other processes
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class _Failure:
    chunk: int
    number: int
    problem: str


def run(scale: float, seed: int) -> list[Survived]:
    """A row per reader."""
    torch.set_num_threads(1)
    # The readers are made once, before processes are forked.
    counts = {name: reader.inputs_of(INPUTS, scale) for name, reader in sorted(known().items())}
    jobs = [
        (name, chunk, min(_CHUNK, count - start))
        for name, count in counts.items()
        for chunk, start in enumerate(range(0, count, _CHUNK))
    ]
    found: dict[str, list[_Failure]] = {name: [] for name in counts}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=_FORK) as pool:
        for (name, _, _), failures in zip(jobs, pool.map(_tried, jobs, repeat(seed)), strict=True):
            found[name] += failures
    return [_row(name, counts[name], failures) for name, failures in found.items()]


def shown(name: str, seed: int, chunk: int, number: int) -> None:
    """Write one input to stdout."""
    content = next(islice(_inputs(known()[name], seed, chunk), number, None))
    sys.stdout.buffer.write(content)


@cache
def known() -> dict[str, Reader]:
    return readers()


def _tried(job: tuple[str, int, int], seed: int) -> list[_Failure]:
    name, chunk, size = job
    return failures(known()[name], size, seed, chunk)


def _row(name: str, count: int, failures: Sequence[_Failure]) -> Survived:
    note = "; ".join(f"chunk {each.chunk}, input {each.number}: {each.problem}" for each in failures[:2])
    return Survived(what=f"damaged input: {name}", tried=count, survived=count - len(failures), note=note[:500])


def _inputs(reader: Reader, seed: int, chunk: int) -> Iterator[bytes]:
    return reader.inputs(f"{seed} {reader.name} {chunk}")


def failures(reader: Reader, count: int, seed: int, chunk: int) -> list[_Failure]:
    """Try the first inputs of one chunk; a process that dies is followed by another one, from the next input on."""
    found: list[_Failure] = []
    done = 0
    while done < count:
        receiver, sender = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_try_all, args=(reader, seed, chunk, done, count, sender))
        process.start()
        sender.close()
        try:
            while done < count:
                wrong: str | None = receiver.recv()
                if wrong is not None:
                    found.append(_Failure(chunk, done, wrong))
                done += 1
        except EOFError:
            process.join()
            found.append(_Failure(chunk, done, f"ends the process ({process.exitcode})"))
            done += 1
        process.join()
        receiver.close()
    return found


def _try_all(reader: Reader, seed: int, chunk: int, start: int, end: int, results: Connection) -> None:
    """In a process of its own: send what is wrong with each input, or None."""
    with judge(reader) as wrong_with:
        for content in islice(_inputs(reader, seed, chunk), start, end):
            results.send(wrong_with(content))


@contextmanager
def judge(reader: Reader) -> Iterator[Callable[[bytes], str | None]]:
    """A function that says what is wrong with how an input is read, or None; it limits its whole process."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    resource.setrlimit(resource.RLIMIT_DATA, (_ADDRESSES, _ADDRESSES))
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, PeakMemory() as peak:
        file = Path(folder) / f"input{reader.ending}"
        file.write_bytes(reader.valid[0])
        with suppress(ValueError):
            reader.read(file)  # imports what it needs, which counts for no input

        def wrong_with(content: bytes) -> str | None:
            file.write_bytes(content)
            before = peak.forgotten_mib()
            wrong = problem(reader, file)
            grown = peak.mib() - before
            return f"takes {grown} MiB" if wrong is None and grown > MOST_MIB else wrong

        yield wrong_with


class PeakMemory:
    """The most memory that this process had in use; its files stay open, since each input asks twice."""

    def __enter__(self) -> Self:
        self._forget = os.open("/proc/self/clear_refs", os.O_WRONLY)
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._forget)
        os.close(self._status)

    def forgotten_mib(self) -> int:
        """Set the peak to what is in use, and return that."""
        os.write(self._forget, b"5")
        return self.mib()

    def mib(self) -> int:
        """Since it was last forgotten."""
        status = os.pread(self._status, 8192, 0)
        return int(status.partition(b"VmHWM:")[2].split(maxsplit=1)[0]) // 1024
