"""A disk that fills up during a chain: one sentence, nothing half-written, and the same command finishes with space.

The home is on a file system of its own (tmpfs, which needs root), and a file of ballast leaves it as much space as the
attempt gives. Prefect's database is elsewhere: `test_full_disk.py` tries what fails before anything starts.
"""

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.survived import Survived
from tests.helpers import forks

ATTEMPTS = 8
RUN = ("run", "--recipe", "smoke", "--testbed", "simulated")
_MOST_KIB = 45_000  # of a home after the smoke recipe
_DISK_MIB = 64
_LITTLE_KIB = 64


def run(scale: float, seed: int) -> list[Survived]:
    """One row: disks that filled up at random moments."""
    with forks.environment():
        return [_attempts(scale, seed)]


def _attempts(scale: float, seed: int) -> Survived:
    draw, broken, count, failed = random.Random(seed), {}, max(1, round(ATTEMPTS * scale)), 0
    for _ in range(count):
        free_kib = round(_LITTLE_KIB * (_MOST_KIB / _LITTLE_KIB) ** draw.random())
        with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder)) as disk:
            is_failed, problems = attempt(disk, free_kib)
            failed += is_failed
            if problems:
                broken[free_kib] = problems
            print(f"{free_kib} KiB: {'failed, and continued' if is_failed else 'enough'} {problems}", flush=True)
    note = f"{failed} of them failed and were continued; " + "; ".join(
        f"{kib} KiB: {why}" for kib, why in broken.items()
    )
    return Survived(what="disks that fill up during a chain", tried=count, survived=count - len(broken), note=note)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of 64 MiB at `folder`.

    Raises:
        PermissionError: this user or container may not mount.
    """
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        raise PermissionError(f"no file system can be mounted at {folder} ({done.stderr.strip()}); run it as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def attempt(disk: Path, free_kib: int) -> tuple[bool, list[str]]:
    """Run a chain with so much space, then again with all of it: whether the first failed, and what was wrong."""
    from tests.flows.commands import runner

    with pytest.MonkeyPatch.context() as patch:
        dreamshard, home, problems = runner(patch), disk / "home", []
        ballast = disk / "ballast"
        fill(ballast, free_kib)
        first = dreamshard(*RUN, home=home)
        if first.returncode:
            if "is full" not in first.sentence or "SQL" in first.sentence or "\n" in first.sentence:
                problems.append(f"said {first.sentence!r}")
            problems += half_written(home)
        ballast.unlink()
        if first.returncode:
            again = dreamshard(*RUN, home=home)
            if again.returncode:
                problems.append(f"not continued: {again.sentence!r}")
                return True, problems
        return bool(first.returncode), problems + wrong(home, dreamshard)


def fill(ballast: Path, free_kib: int) -> None:
    """Write `ballast` so that so much space is left beside it."""
    size = shutil.disk_usage(ballast.parent).free - free_kib * 1024
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def half_written(home: Path) -> list[str]:
    """Temporary files that a failed command left."""
    return [f"left {path.relative_to(home)}" for path in home.rglob("*.tmp")] if home.exists() else []


def wrong(home: Path, dreamshard: Callable[..., object]) -> list[str]:
    """What does not hold of a home after a finished chain: every view answers, samples are there once, one version."""
    from storage.lake import catalog
    from storage.settings import Settings

    settings = Settings.from_environment({"DREAMSHARD_HOME": str(home)})
    for view in catalog.VIEWS:
        catalog.query(settings, f"select * from {view}")
    (samples,) = catalog.query(
        settings, "select count(*) as rows, count(distinct (sample_id, device)) as once from device_costs"
    )
    (versions,) = catalog.query(settings, "select count(*) as rows from versions")
    problems = []
    if not samples["rows"] == samples["once"] > 0:
        problems.append(f"samples {samples}")
    if versions["rows"] != 1:
        problems.append(f"versions {versions}")
    return problems
