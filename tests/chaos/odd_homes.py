"""Homes that may only be read, clocks that go back, secrets in the environment, and commands that start at once.

Needs root, to mount a home for reading only, and a C compiler, to set the clock of single commands back.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dreamshard.files.digests import digest
from tests.chaos.survived import Survived
from tests.helpers import kept_secrets
from tests.helpers.read_only import read_only

STARTS = 8
"""Of commands at once in a new home."""
RUN = ("run", "--recipe", "smoke", "--testbed", "simulated")
_TABLES = "name,rows,dim,pooling_factor\n" + "".join(f"t{each},{1000 * each + 1},16,{each + 1}\n" for each in range(24))
READING = (
    ("models",),
    ("sql", "select count(*) as tables from tables"),
    ("place", "{tables}", "--devices", "2", "--memory-gb", "1"),
)
WRITING = (
    RUN,
    ("ingest", "{tables}"),
    ("train", "--recipe", "smoke", "--testbed", "simulated"),
    ("promote", "1", "--reason", "by hand"),
    ("compact",),
    ("prune", "--yes"),
)


def run(scale: float, seed: int) -> list[Survived]:
    """A row for each kind of home."""
    with tempfile.TemporaryDirectory(prefix="dreamshard-odd-") as name:
        folder = Path(name)
        (folder / "tables.csv").write_text(_TABLES)
        rows = [_at_once(folder, max(1, round(STARTS * scale)), seed), _with_secrets(folder)]
        rows.append(_read_only(folder))
        rows.append(_clock_back(folder))
    return rows


def _command(folder: Path, home: Path, arguments: Sequence[str], **environ: str) -> "subprocess.Popen[str]":
    """A command of its own process, which has not ended yet."""
    own = {name: value for name, value in os.environ.items() if name not in ("PREFECT_HOME", "PREFECT_API_URL")}
    words = [word.format(tables=folder / "tables.csv") for word in arguments]
    return subprocess.Popen(
        [sys.executable, "-c", "from flows.cli.app import main; main()", *words],
        env={**own, "DREAMSHARD_HOME": str(home), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _done(folder: Path, home: Path, arguments: Sequence[str], **environ: str) -> tuple[int, str, str]:
    with _command(folder, home, arguments, **environ) as process:
        try:
            out, err = process.communicate(timeout=900)
        finally:
            process.kill()
    return process.returncode, out, err


def _at_once(folder: Path, count: int, seed: int) -> Survived:
    """New homes in which a command is killed while MLflow's or Prefect's database is made, and three start at once."""
    draw, broken = random.Random(seed), []
    for attempt in range(count):
        home = folder / f"new{attempt}"
        ingest = ("ingest", "{tables}")
        first = _command(folder, home, ingest)
        made = home / ("prefect/prefect.db" if attempt % 2 else "mlflow.db.lock")  # MLflow's comes some seconds later
        while not made.exists() and first.poll() is None:
            time.sleep(0.01)
        delay = draw.uniform(0, 2)
        try:
            first.communicate(timeout=delay)
        except subprocess.TimeoutExpired:
            first.kill()
            first.communicate()
        three = [_command(folder, home, ingest) for _ in range(3)]
        try:
            said = [process.communicate(timeout=900)[1] for process in three]
        finally:
            for process in three:
                process.kill()
        if any(process.returncode for process in three):
            broken.append(f"killed {delay:.2f} s after {made.name}: {[text[-300:] for text in said]}")
        shutil.rmtree(home)
    return Survived(
        what="new homes: killed within 2 s of a database, then three commands at once",
        tried=count,
        survived=count - len(broken),
        note="; ".join(broken),
    )


def _with_secrets(folder: Path) -> Survived:
    """A chain with every secret in its environment, which is the home of the trials after it."""
    secrets = {
        "AWS_ACCESS_KEY_ID": "team",
        "AWS_SECRET_ACCESS_KEY": kept_secrets.STORE_KEY,
        "DREAMSHARD_NOTIFY": kept_secrets.MAIL,
        "MLFLOW_TRACKING_PASSWORD": kept_secrets.LOGIN,
    }
    home = folder / "home"
    code, out, err = _done(folder, home, RUN, **secrets)
    found = kept_secrets.given_away([*kept_secrets.files_below(home), ("output", f"{out}{err}".encode())])
    note = err[-300:] if code else "; ".join(f"{name}: {sorted(which)}" for name, which in found.items())
    return Survived(
        what="chains with secrets in the environment", tried=1, survived=int(not code and not found), note=note
    )


def _read_only(folder: Path) -> Survived:
    """Every command in a home that nobody may write."""
    home, broken = folder / "home", []
    before = _digests(home)
    with read_only(home):
        for arguments in (*READING, *WRITING):
            code, _, err = _done(folder, home, arguments)
            lines = err.strip().splitlines()
            if arguments in WRITING and not (code == 1 and len(lines) == 1 and "Read-only file system" in lines[0]):
                broken.append(f"{arguments[0]} said {err[-300:]!r}")
            if arguments in READING and code:
                broken.append(f"{arguments[0]} ended with {code}: {err[-300:]!r}")
    if _digests(home) != before:
        broken.append("files changed")
    tried = len(READING) + len(WRITING)
    return Survived(
        what="commands in a home that may only be read",
        tried=tried,
        survived=tried - len(broken),
        note="; ".join(broken),
    )


def _digests(home: Path) -> dict[str, str]:
    return {name: digest(content) for name, content in kept_secrets.files_below(home)}


def _clock_back(folder: Path) -> Survived:
    """Two chains and an ingestion, with the clock an hour back from the second on.

    Raises:
        CalledProcessError: there is no C compiler.
    """
    shifted = folder / "clock_shift.so"
    source = Path(__file__).with_name("clock_shift.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(shifted), str(source), "-ldl"], check=True)
    back = {"LD_PRELOAD": str(shifted), "CLOCK_SHIFT_S": "-3600"}
    home, broken = folder / "home", []

    def ask(*arguments: str) -> list[dict[str, object]]:
        code, out, err = _done(folder, home, arguments, **back)
        if code:
            broken.append(f"{arguments[0]}: {err[-300:]}")
        return json.loads(out) if not code and out.strip() else []

    for arguments in ((*RUN, "--seed", "1"), ("compact",), ("ingest", "{tables}")):
        code, _, err = _done(folder, home, arguments, **back)
        if code:
            broken.append(f"{arguments[0]}: {err[-300:]}")
    current = ask("sql", "--json", "select count(*) as rows from tables where dataset_version = "
                  "(select arg_max(dataset_version, created_at) from tables)")  # fmt: skip
    if not current or current[0]["rows"] != _TABLES.count("\n") - 1:
        broken.append(f"the dataset ingested last is not the current one: {current}")
    versions = [str(row["version"]) for row in ask("models", "--json")]
    if versions != ["2", "1"]:
        broken.append(f"versions newest first are {versions}")
    return Survived(
        what="steps after the clock went back by an hour", tried=5, survived=5 - len(broken), note="; ".join(broken)
    )
