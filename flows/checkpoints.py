"""Where a training run stands, on disk: `<home>/checkpoints/<key>/iteration_NN`, each complete or absent.

The key stands for everything that shapes the training, so a run with the same key goes on from the last iteration of an
earlier one, killed or finished.
"""

import json
import os
from pathlib import Path
from typing import Any

from dreamshard.training import TrainingState, load_state, save_state
from storage.settings import Settings

Metrics = dict[str, float]
"""Figures of one iteration by the names they have in MLflow."""


def folder(key: str) -> Path:
    """The folder of the training run `key`."""
    return Path(Settings.load().checkpoints) / key


def last_iteration(key: str) -> int | None:
    """The newest complete iteration of the training run, or None before its start."""
    found = [int(path.name.removeprefix("iteration_")) for path in folder(key).glob("iteration_[0-9][0-9]*") if path.is_dir()]
    return max(found, default=None)


def save(key: str, name: str, state: TrainingState, metrics: Metrics | None = None) -> None:
    """Save the state as `name`, its figures first: a checkpoint that exists has them."""
    target = folder(key)
    target.mkdir(parents=True, exist_ok=True)
    if metrics is not None:
        write_json(target / f"{name}.json", metrics)
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


def iteration_name(iteration: int) -> str:
    """The name of a complete iteration's checkpoint; iteration 0 is the untrained start."""
    return f"iteration_{iteration:02}"


def metrics(key: str, iteration: int) -> Metrics:
    """The figures of one complete iteration."""
    found: Metrics = json.loads((folder(key) / f"{iteration_name(iteration)}.json").read_text())
    return found


def write_json(path: Path, content: Any) -> None:
    """Write `content` so that a reader sees all of it or nothing."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
