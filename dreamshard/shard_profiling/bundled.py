"""Placers learnt from costs of one kind of GPU, for people who have none at hand: `--placer h200`.

A folder per accelerator holds what `model_files.save_placer` writes, and `measurements.json`: from which measurements.
Folders are looked for in the home first and then among the package's data, where `publish.py` puts what was measured,
together with the measurements.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dreamshard.model_files import load_placer, save_placer
from dreamshard.search import DreamShardPlacer

PACKAGED = Path(__file__).parent / "models"
MEASUREMENTS = "measurements.json"


@dataclass(frozen=True)
class ShippedPlacer:
    """A placer and what it was learnt from.

    Attributes:
        placer: ready to place.
        measurements: hardware, versions, dates, batch, precision, optimizer, number of shards, errors.
    """

    placer: DreamShardPlacer
    measurements: Mapping[str, object]

    def __str__(self) -> str:
        found = self.measurements
        dates = found["measured"]
        when = " to ".join(sorted(set(dates))) if isinstance(dates, list) else str(dates)
        return (
            f"learnt from {found['shards']} shards measured on {found['hardware']}, {when}, batch "
            f"{found['batch_size']}, {found['precision']}, {found['optimizer']} ({_libraries(found.get('versions'))})"
        )


def is_of(accelerator: str, hardware: str) -> bool:
    """Whether a device's model, as its driver reports it, is that accelerator; a simulated one is not."""
    words = hardware.lower().replace("-", " ").split()
    return accelerator in words and ("simulated" not in words or accelerator == "simulated")


def check_name(accelerator: str, hardware: str) -> None:
    """Refuse to call a placer after an accelerator that its costs were not measured on.

    Raises:
        ValueError: they were not.
    """
    if not is_of(accelerator, hardware):
        raise ValueError(
            f"these costs were measured on {hardware}, so a placer learnt from them must not be called "
            f"{accelerator!r}; run `dreamshard profile --recipe {accelerator}_costs` where there is one"
        )


def save_shipped(
    folder: Path,
    accelerator: str,
    placer: DreamShardPlacer,
    measurements: Mapping[str, object],
    more: Mapping[str, str | bytes] | None = None,
) -> Path:
    """Keep a placer for `--placer ACCELERATOR` in `folder`, together with what it was learnt from.

    Args:
        folder: of all such placers.
        accelerator: a word of the hardware's name.
        placer: to be kept.
        measurements: as `shard_training.describe` and the errors say.
        more: content of more files by their names.

    Raises:
        ValueError: its costs were not measured on that accelerator.
    """
    check_name(accelerator, str(measurements["hardware"]))
    target = folder / accelerator
    save_placer(placer, target, {MEASUREMENTS: json.dumps(dict(measurements), indent=1), **(more or {})})
    return target


def shipped_names(folders: Sequence[Path] = ()) -> list[str]:
    """Names that `shipped_placer` knows, in the given folders and among the package's data."""
    return sorted({path.parent.name for folder in (*folders, PACKAGED) for path in folder.glob(f"*/{MEASUREMENTS}")})


def shipped_placer(accelerator: str, folders: Sequence[Path] = ()) -> ShippedPlacer:
    """The placer for an accelerator.

    Args:
        accelerator: a preset's name.
        folders: where to look before the package's data.

    Raises:
        ValueError: there is none; the message says how to make one.
    """
    for folder in (*folders, PACKAGED):
        if (folder / accelerator / MEASUREMENTS).is_file():
            measurements = json.loads((folder / accelerator / MEASUREMENTS).read_text(encoding="utf-8"))
            return ShippedPlacer(load_placer(folder / accelerator), measurements)
    raise ValueError(
        f"there is no placer learnt from costs of {accelerator}, because none have been measured on one yet; where "
        f"there is one run `dreamshard profile --recipe {accelerator}_costs` and `dreamshard train --recipe "
        f"{accelerator}_costs`, or place with `--placer champion` or a rule of thumb"
    )


def _libraries(versions: object) -> str:
    """Names and versions of what ran on the device."""
    found = versions if isinstance(versions, Mapping) else {}
    return ", ".join(f"{name} {version}" for name, version in found.items()) or "versions unknown"
