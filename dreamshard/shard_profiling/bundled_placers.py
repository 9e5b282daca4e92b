"""Placers learnt from costs of one kind of GPU, for people who have no such GPU: `--placer h200`.

Each accelerator has a folder with the files of `model_files.save_placer` and `measurements.json`, which describes the
measurements behind the placer. Such folders lie in the home and in the package, where `publish.py` adds them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamshard.files.foreign import file_bytes, json_content
from dreamshard.model_files import load_placer, save_placer
from dreamshard.model_folder import check_files, folder_digest
from dreamshard.names import SIMULATED
from dreamshard.search import DreamShardPlacer

PACKAGED = Path(__file__).parent / "models"
MEASUREMENTS = "measurements.json"


@dataclass(frozen=True)
class BundledPlacer:
    """A placer and the measurements behind it.

    Attributes:
        measurements: as in `fit.FittedPlacer`.
    """

    placer: DreamShardPlacer
    measurements: Mapping[str, Any]

    def __str__(self) -> str:
        facts = self.measurements
        dates = " to ".join(sorted(set(facts["measured"])))
        versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
        return (
            f"learnt from {facts['shards']} shards measured on {facts['hardware']}, {dates}, batch {facts['batch_size']}, "
            f"{facts['precision']}, {facts['optimizer']} ({versions})"
        )


def is_of(accelerator: str, hardware: str) -> bool:
    """Whether a device model, as its driver reports it, is this accelerator; a computed one is not."""
    words = hardware.lower().replace("-", " ").split()
    return accelerator in words and (accelerator == SIMULATED or SIMULATED not in words)


def check_name(accelerator: str, hardware: str) -> None:
    """Refuse to name a placer after an accelerator other than the one measured.

    Raises:
        ValueError: the costs were not measured on that accelerator.
    """
    if not is_of(accelerator, hardware):
        raise ValueError(
            f"these costs were measured on {hardware}, so a placer learnt from them must not be called "
            f"{accelerator!r}; run `dreamshard profile --recipe {accelerator}_costs` on a machine that has one"
        )


def save_bundled(
    folder: Path,
    accelerator: str,
    placer: DreamShardPlacer,
    measurements: Mapping[str, object],
    extra_files: Mapping[str, bytes] | None = None,
) -> Path:
    """Save a placer for `--placer ACCELERATOR`; returns its folder.

    Args:
        folder: of all bundled placers.
        accelerator: a word of the hardware's name; refused as by `check_name`.
        placer: to save.
        measurements: from `fit.FittedPlacer`.
        extra_files: content of further files by name.
    """
    check_name(accelerator, str(measurements["hardware"]))
    target = folder / accelerator
    save_placer(placer, target, {MEASUREMENTS: json.dumps(dict(measurements), indent=1), **dict(extra_files or {})})
    return target


def bundled_names(folders: Sequence[Path] = ()) -> list[str]:
    """Names of the placers in `folders` and in the package."""
    return sorted({path.parent.name for folder in (*folders, PACKAGED) for path in folder.glob(f"*/{MEASUREMENTS}")})


def load_bundled(accelerator: str, folders: Sequence[Path] = ()) -> BundledPlacer:
    """The placer for an accelerator; `folders` are searched before the package.

    Raises:
        ValueError: there is none; the message says how to make one.
    """
    for folder in (*folders, PACKAGED):
        file = folder / accelerator / MEASUREMENTS
        if file.is_file():
            check_files(file.parent, folder_digest(file.parent))
            problem, advice = (
                "does not say what the placer was learnt from",
                "so its costs cannot be named; save it again",
            )
            return BundledPlacer(load_placer(file.parent), _measurements(file, problem, advice))
    raise ValueError(
        f"there is no placer learnt from costs of {accelerator}, because none have been measured yet; on a machine that "
        f"has one run `dreamshard profile --recipe {accelerator}_costs` and `dreamshard train --recipe "
        f"{accelerator}_costs`, or place with `--placer champion` or a rule of thumb"
    )


def _measurements(file: Path, problem: str, advice: str) -> dict[str, Any]:
    content = json_content(file_bytes(file, problem, advice), file, problem, advice)
    wanted = {"shards", "hardware", "measured", "batch_size", "precision", "optimizer", "versions"}
    if not isinstance(content, dict) or not wanted <= content.keys() or not isinstance(content["versions"], dict):
        raise ValueError(f"{file} {problem}: it has not all of {', '.join(sorted(wanted))}, {advice}")
    return content
