"""Saved placers and requests to the scoring server, to damage."""

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dreamshard.model_files import load_placer, save_placer
from tests.helpers.damaged_reading import Reader, json_bytes


def placers_and_requests() -> list[Reader]:
    """A reader for each file of a placer, and one for requests."""
    return [_config_of_placer(), _weights_of_placer(), _request()]


@cache
def _saved() -> dict[str, bytes]:
    from tests.helpers.trained import learnt_placer

    with tempfile.TemporaryDirectory() as folder:
        save_placer(learnt_placer(), Path(folder) / "placer")
        return {file.name: file.read_bytes() for file in (Path(folder) / "placer").iterdir()}


def _placer_with(changed: str) -> Callable[[Path], None]:
    """Reads a placer of which one file is the given one; its digests are left out, as somebody would who changes it."""

    def read(path: Path) -> None:
        folder = path.parent / "placer"
        folder.mkdir(exist_ok=True)
        for name, content in _saved().items():
            if name in ("config.json", "weights.safetensors"):
                (folder / name).write_bytes(path.read_bytes() if name == changed else content)
        load_placer(folder)

    return read


def _config_of_placer() -> Reader:
    valid = (_saved()["config.json"],)
    return Reader("placers: configuration", ".json", valid, _placer_with("config.json"))


def _weights_of_placer() -> Reader:
    valid = (_saved()["weights.safetensors"],)
    return Reader("placers: weights", ".safetensors", valid, _placer_with("weights.safetensors"))


@cache
def _served() -> Any:
    from storage.mlflow_store.placer_model import PlacerModel
    from tests.helpers.trained import learnt_placer

    with tempfile.TemporaryDirectory() as folder:
        save_placer(learnt_placer(), Path(folder) / "placer")
        model = PlacerModel()
        artifacts = {"placer": str(Path(folder) / "placer")}
        model.load_context(SimpleNamespace(artifacts=artifacts))  # type: ignore[arg-type]
    return model


def _request() -> Reader:
    _served()  # before processes are forked, each of which would import MLflow
    tables = [{"name": name, "rows": 1000, "dim": 64, "pooling_factor": 5.0} for name in ("users", "items", "words")]
    tables[0] |= {"lookups": 100, "unique_rows": 10, "bins": [1.0] + [0.0] * 16}
    first = {"num_devices": 2, "memory_gb": 1.0, "tables": tables, "budget_ms": 0.0}
    second = {
        **first,
        "precision": "fp16",
        "optimizer": "adam",
        "devices_per_host": 2,
        "batch_size": 8,
        "hardware": "h100",
    }

    def read(path: Path) -> None:
        from mlflow.exceptions import MlflowException

        try:
            content = json.loads(path.read_bytes())  # as MLflow does, which answers 400 to other text
            inputs = content["inputs"]
        except (ValueError, RecursionError, KeyError, TypeError):
            return
        try:
            _served().predict(None, inputs)
        except MlflowException as error:
            if error.get_http_status_code() != 400:
                raise
            if error.__cause__ is not None:
                raise error.__cause__ from None

    return Reader("requests", ".json", (json_bytes({"inputs": [first]}), json_bytes({"inputs": [first, second]})), read)
