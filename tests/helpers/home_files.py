"""Files that a home keeps for itself, to damage: disks fail, and copies break off."""

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dreamshard.tasks import PlacementTask
from dreamshard.trained import State
from dreamshard.workloads import dataset_version
from storage.lake import Lake
from storage.relocation import settling
from storage.run_records import checkpoints
from tests.helpers.autoshard import learnt_autoshard
from tests.helpers.damaged_reading import Reader, json_bytes
from tests.helpers.lake import append_samples
from tests.helpers.samples import four_tables, make_sample
from tests.helpers.trained import learnt

_SHARE = 0.1  # nobody makes these to do harm, and a checkpoint takes a hundredth of a second


def files_of_homes() -> list[Reader]:
    """A reader for each kind."""
    checkpointed = [
        _checkpoint_reader("checkpoints of dreamshard", learnt),
        _checkpoint_reader("checkpoints of autoshard", learnt_autoshard),
    ]
    return [*checkpointed, _record(), *(_lake_reader(kind, read) for kind, read in _OF_LAKE.items())]


def _store(folder: Path) -> Any:
    """As much of a store as checkpoints need."""
    return SimpleNamespace(checkpoints=folder / "checkpoints")


def _checkpoint_reader(name: str, state: Callable[[], State]) -> Reader:
    with tempfile.TemporaryDirectory() as folder:
        checkpoints.save(_store(Path(folder)), "key", "iteration_01", state(), {})
        valid = next(Path(folder).rglob("*.zip")).read_bytes()

    def read(path: Path) -> None:
        file = _store(path.parent).checkpoints / "key" / "iteration_01.zip"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(path.read_bytes())
        checkpoints.placer(_store(path.parent), "key", 1, None)

    return Reader(name, ".zip", (valid,), read, _SHARE)


def _record() -> Reader:
    valid = json_bytes({"home": "/homes/mine", "also": ["/mnt/mine"]})

    def read(path: Path) -> None:
        (path.parent / "home.json").write_bytes(path.read_bytes())
        settling.known_names(path.parent)

    return Reader("records of homes", ".json", (valid,), read, _SHARE)


_SPLIT, _SET = "test", "drawn"
_OF_LAKE: dict[str, Callable[[Lake, str], object]] = {
    "tables": Lake.read_pool,
    "tasks": lambda lake, version: lake.read_tasks(version, _SPLIT, _SET),
    "cost_samples": lambda lake, version: lake.read_cost_samples(),
}


@cache
def _lake() -> tuple[str, dict[Path, bytes]]:
    """The version of a dataset, and the files of a lake with it, tasks of it and samples, by path."""
    tables = four_tables()
    task = PlacementTask(tables, 2, 2**30, name="t")
    version = dataset_version(tables)
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder) / "lake", Path(folder))
        lake.write_dataset(tables, version, "by hand")
        lake.write_tasks([task], version, _SPLIT, _SET)
        append_samples(lake, [make_sample(task, [0, 1, 0, 1])], "key", 1, version)
        return version, {file.relative_to(lake.root): file.read_bytes() for file in lake.root.rglob("*.parquet")}


def _lake_reader(kind: str, read_kind: Callable[[Lake, str], object]) -> Reader:
    """Reads a lake in which one file of this kind is the given one."""
    version, files = _lake()
    [damaged] = [path for path in files if path.parts[0] == kind]

    def read(path: Path) -> None:
        lake = Lake(path.parent / "lake", path.parent)
        for name, content in files.items():
            file = lake.root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(path.read_bytes() if name == damaged else content)
        read_kind(lake, version)

    return Reader(f"the lake: {kind}", ".parquet", (files[damaged],), read, _SHARE)
