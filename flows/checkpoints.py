"""Where a training run stands, on disk: `<home>/checkpoints/<key>/iteration_NN`, each complete or absent.

The key stands for everything that shapes the training, so a run with the same key goes on from the last iteration of an
earlier one, killed or finished.
"""

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from dreamshard.model_files import load_state, save_state
from dreamshard.search import DreamShardPlacer
from dreamshard.training import TrainingState, make_placer
from storage.settings import Settings

Metrics = dict[str, float]
"""Figures of one iteration by the names they have in MLflow."""

STATE_FILES = ("config.json", "weights.safetensors")
"""What a whole state consists of."""

_ITERATION = re.compile(r"iteration_(\d{2,})")
_LEFTOVER = re.compile(r".+\.(?P<pid>\d+)(\.\w+)?\.tmp")


def folder(key: str) -> Path:
    """The folder of the training run `key`."""
    return Path(Settings.load().checkpoints) / key


def last_iteration(key: str) -> int | None:
    """The newest complete iteration of the training run, or None before its start."""
    names = ((_ITERATION.fullmatch(path.name), path) for path in folder(key).glob("iteration_*"))
    found = [int(match[1]) for match, path in names if match and _is_state(path)]
    return max(found, default=None)


def save(key: str, name: str, state: TrainingState, kept: Metrics) -> None:
    """Save the state as `name`, its figures first: a checkpoint that exists has them."""
    target = folder(key)
    target.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    write_json(target / f"{name}.json", kept)
    save_state(state, target / name)


def load(key: str, name: str) -> TrainingState:
    """The state saved as `name`.

    Raises:
        ValueError: there is none.
    """
    path = folder(key) / name
    if not path.is_dir():
        raise ValueError(
            f"there is no checkpoint {path}, so training cannot go on from it; run `dreamshard train`, which starts or "
            "resumes it"
        )
    return load_state(path)


def require(key: str, name: str, command: str) -> None:
    """Check that the step before has left its state, whole.

    Raises:
        ValueError: it has not.
    """
    if not _is_state(folder(key) / name):
        raise ValueError(
            f"the step before has not been run for training {key}, so there is nothing to go on from; run {command}"
        )


def require_trained(key: str, iteration: int) -> None:
    """Check that something has been learnt.

    Raises:
        ValueError: the training stands at its start.
    """
    if iteration == 0:
        raise ValueError(
            f"training {key} has finished no iteration, so its placer has learnt nothing that could be evaluated or "
            "promoted; run `dreamshard train` with the same options first"
        )


def placer(key: str, iteration: int, budget_ms: float | None) -> DreamShardPlacer:
    """The placer learnt by the end of the iteration, with `budget_ms` for its search."""
    return replace(make_placer(load(key, iteration_name(iteration))), budget_ms=budget_ms)


def iteration_name(iteration: int) -> str:
    """The name of a complete iteration's checkpoint; iteration 0 is the untrained start."""
    return f"iteration_{iteration:02}"


def figures(key: str, name: str) -> Metrics:
    """The figures kept with the state saved as `name`."""
    found: Metrics = json.loads((folder(key) / f"{name}.json").read_text())
    return found


def discard(key: str, *names: str) -> None:
    """Remove states that a complete iteration has made superfluous; one half removed has no longer its name."""
    for name in names:
        leaving = folder(key) / f"{name}.{os.getpid()}.discarded.tmp"
        (folder(key) / name).rename(leaving)
        shutil.rmtree(leaving)


def is_complete(key: str, iteration: int) -> bool:
    """Whether the iteration has its checkpoint."""
    return _is_state(folder(key) / iteration_name(iteration))


def history(key: str) -> list[Metrics]:
    """The figures of all complete iterations, in order."""
    return [figures(key, iteration_name(iteration)) for iteration in range(1, (last_iteration(key) or 0) + 1)]


def save_proposals(key: str, iteration: int, drawn: Sequence[tuple[str, list[int]]]) -> None:
    """Keep which placements an iteration drew: task name and devices, in order."""
    write_json(folder(key) / f"{iteration_name(iteration)}.proposals.json", drawn)


def proposals(key: str, iteration: int) -> list[tuple[str, list[int]]]:
    """The placements an iteration drew, in order."""
    read = json.loads((folder(key) / f"{iteration_name(iteration)}.proposals.json").read_text())
    return [(name, device) for name, device in read]


def write_json(path: Path, content: Any) -> None:
    """Write `content` so that a reader sees all of it or nothing."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _is_state(path: Path) -> bool:
    return all((path / name).is_file() for name in STATE_FILES)


def _sweep(target: Path) -> None:
    """Remove what a killed writer left behind; a writer that is alive keeps its own."""
    for path in target.glob("*.tmp"):
        match = _LEFTOVER.fullmatch(path.name)
        if match is None or psutil.pid_exists(int(match["pid"])):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
