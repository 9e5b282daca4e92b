"""Damaged input that is led by coverage, for every reader: what reaches new code is damaged further (atheris, libFuzzer).

It needs atheris, which `make chaos` installs where there is a wheel of it. An input that is not survived ends the trial of
its reader, and is kept in a file that the row names.
"""

import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.survived import Survived

INPUTS = 100_000
_OWN = ["dreamshard", "storage", "flows"]
_LONGEST = 8192  # bytes of an input
_WHOLE_MIB = 3072  # of the process, which has 0.6 GiB of libraries; of an input, see `readers.MOST_MIB`
_OURS = 0.5  # share of the changes that are of `tests.helpers.damage`, the others libFuzzer's


def run(scale: float, seed: int) -> list[Survived]:
    """A row per reader, or one that says that nothing was tried."""
    if importlib.util.find_spec("atheris") is None:
        return [Survived(what="led by coverage", tried=0, survived=0, note="not tried: atheris is not installed")]
    with tempfile.TemporaryDirectory() as folder:
        runs = max(20, round(INPUTS * scale))
        command = [sys.executable, "-m", "tests.chaos.guided", str(runs), str(seed), folder]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
    if not found:
        raise RuntimeError(f"no reader was tried: {ended.stderr[-500:]}")
    return [Survived(**each) for each in found]


def _main(arguments: Sequence[str]) -> None:
    """Try all readers, each in a fork of this process, whose imports are watched."""
    import atheris

    runs, seed, folder = int(arguments[0]), int(arguments[1]), Path(arguments[2])
    with atheris.instrument_imports(include=_OWN):
        from tests.helpers.foreign_files import readers

        known = readers()
    forked = multiprocessing.get_context("fork")

    def try_one(number_and_name: tuple[int, str]) -> None:
        number, name = number_and_name
        process = forked.Process(
            target=_fuzz, args=(known[name], known[name].inputs_of(runs, 1), seed, folder / f"{number:02}")
        )
        process.start()
        process.join()
        report = folder / f"{number:02}.json"
        said: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {"tried": 1, "note": ""}
        if process.exitcode != 0 and not said["note"]:
            said["note"] = f"ended the process ({process.exitcode}): {_tail(folder / f'{number:02}.log')}"
        survived = said["tried"] - bool(said["note"])
        report.write_text(json.dumps({"what": f"led by coverage: {name}", "survived": survived, **said}))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(try_one, enumerate(sorted(known))))


def _fuzz(reader: Any, runs: int, seed: int, place: Path) -> None:
    """Try one reader, whose report is `place`.json; never returns, since libFuzzer ends the process."""
    import atheris

    from tests.chaos.readers import MOST_MIB, PeakMemory
    from tests.helpers.damage import damaged, damaged_json
    from tests.helpers.damaged_reading import problem

    log = os.open(place.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    corpus = place / "corpus"
    corpus.mkdir(parents=True)
    for number, content in enumerate(reader.valid):
        (corpus / str(number)).write_bytes(content)
    file, tried = place / f"input{reader.ending}", 0

    def report(note: str) -> None:
        place.with_suffix(".json").write_text(json.dumps({"tried": tried, "note": note}))

    def read(content: bytes) -> None:
        nonlocal tried
        tried += 1
        file.write_bytes(content)
        before = peak.forgotten_mib()
        wrong = problem(reader, file)
        grown = peak.mib() - before
        if wrong is None and tried > 1 and grown > MOST_MIB:  # the first input also imports
            wrong = f"takes {grown} MiB"
        if wrong:
            kept = reader.kept_by("guided")
            kept.write_bytes(content)
            report(f"{wrong}; input {tried} with seed {seed}, kept in {kept}"[:500])
            os._exit(1)
        if tried >= runs:
            report("")
            os._exit(0)

    def changed(content: bytes, longest: int, draw_seed: int) -> bytes:
        draw = Random(draw_seed)
        if draw.random() > _OURS:
            return bytes(atheris.Mutate(content, longest))
        if reader.ending == ".json" and draw.random() < _OURS:
            try:
                return damaged_json(json.loads(content), draw)[:longest]
            except (ValueError, RecursionError):
                pass
        return damaged(content, draw, reader.valid)[:longest]

    options = [
        f"-seed={seed}",
        f"-max_len={_LONGEST}",
        f"-rss_limit_mb={_WHOLE_MIB}",
        "-timeout=0",
        "-print_final_stats=1",
    ]
    atheris.Setup(["guided", str(corpus), *options], read, custom_mutator=changed)
    with PeakMemory() as peak:
        atheris.Fuzz()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-300:] if log.exists() else ""


if __name__ == "__main__":
    _main(sys.argv[1:])
