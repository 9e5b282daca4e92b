"""Checkpoints of training runs: `<store>/checkpoints/<key>/iteration_NN.zip`, each complete or absent.

The key identifies everything that shapes the training, so a run with the same key resumes after the last iteration of an
earlier one. A checkpoint is one file (the zipped folder of `TrainingAlgorithm.save`), so it appears completely or not at
all, on a disk as on an object store.
"""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from dreamshard.tables import Placement
from dreamshard.training import TRAINING_ALGORITHMS, TrainedPlacer, TrainingState, load_state
from storage.filesystem import AnyPath, list_files, read_json, remove, write_json, writing
from storage.run_records import trainings
from storage.store import Store

Metrics = dict[str, float | None]
"""Figures by their names in MLflow, which has none for None."""


def folder(store: Store, key: str) -> AnyPath:
    """The folder of the training run `key`."""
    return store.checkpoints / key


def last_iteration(store: Store, key: str) -> int | None:
    """The newest iteration of the training run, or None before its start."""
    names = (path.stem for path in list_files(folder(store, key), "iteration_*.zip"))
    return max((int(name.removeprefix("iteration_")) for name in names), default=None)


def save(store: Store, key: str, name: str, state: TrainingState, metrics: Metrics) -> None:
    """Save the state as `name`, after its metrics: every checkpoint has them."""
    write_json(folder(store, key) / f"{name}.json", metrics)
    with TemporaryDirectory() as scratch, writing(_file(store, key, name)) as file:
        files = Path(scratch, name)
        TRAINING_ALGORITHMS[state.config.algorithm].save(state, files)
        with zipfile.ZipFile(file, "w") as archive:
            for part in files.iterdir():
                archive.write(part, part.name)


def load(store: Store, key: str, name: str) -> TrainingState:
    """The state saved as `name`.

    Raises:
        ValueError: it does not exist.
    """
    path = _file(store, key, name)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ValueError(
            f"there is no checkpoint {path}, so training cannot resume from it; run `dreamshard train`, which starts or "
            "resumes it"
        ) from error
    with TemporaryDirectory() as scratch:
        zipfile.ZipFile(io.BytesIO(content)).extractall(scratch)
        return load_state(Path(scratch))


def placer(store: Store, key: str, iteration: int) -> TrainedPlacer:
    """The placer at the end of the iteration."""
    state = load(store, key, iteration_name(iteration))
    return TRAINING_ALGORITHMS[state.config.algorithm].placer(state)


def iteration_name(iteration: int) -> str:
    """The name of a complete iteration's checkpoint; iteration 0 is the untrained start."""
    return f"iteration_{iteration:02}"


def figures(store: Store, key: str, name: str) -> Metrics:
    """The metrics of the state saved as `name`."""
    metrics: Metrics = read_json(folder(store, key) / f"{name}.json")
    return metrics


def discard(store: Store, key: str, *names: str) -> None:
    """Remove states of steps inside an iteration that is now complete."""
    remove([_file(store, key, name) for name in names])


def is_complete(store: Store, key: str, iteration: int) -> bool:
    """Whether the iteration has its checkpoint."""
    return _file(store, key, iteration_name(iteration)).exists()


def history(store: Store, key: str) -> list[Metrics]:
    """The metrics of all complete iterations, in order."""
    complete = range(1, (last_iteration(store, key) or 0) + 1)
    return [figures(store, key, iteration_name(iteration)) for iteration in complete]


def save_proposals(store: Store, key: str, iteration: int, drawn: Sequence[tuple[str, Placement]]) -> None:
    """Save the placements that an iteration drew, with the names of their tasks, in order."""
    content = [(name, placement.device.tolist()) for name, placement in drawn]
    write_json(folder(store, key) / f"{iteration_name(iteration)}.proposals.json", content)


def proposals(store: Store, key: str, iteration: int) -> list[tuple[str, Placement]]:
    """The placements that an iteration drew, with the names of their tasks, in order."""
    num_devices = trainings.read(store, key).recipe.tasks.num_devices
    content = read_json(folder(store, key) / f"{iteration_name(iteration)}.proposals.json")
    return [(name, Placement.whole(device, num_devices)) for name, device in content]


def _file(store: Store, key: str, name: str) -> AnyPath:
    return folder(store, key) / f"{name}.zip"
