"""A placer by name: hardware, a folder, or a version of a registry that is installed beside this package."""

from importlib.metadata import entry_points
from pathlib import Path

from dreamshard.hardware.accelerator import PRESETS, hardware, is_hardware_file
from dreamshard.names import WRITTEN, VersionReference
from dreamshard.placer import Placer
from dreamshard.search import RooflinePlacer
from dreamshard.training import load_placer

GROUP = "dreamshard.placers"
"""Entry points that load a placer by the name of a version: a function from `str` to `Placer`."""


def named_placer(name: str | Path) -> Placer:
    """The placer of a name.

    Args:
        name: a preset (`a100`) or a hardware file (`cluster.yaml`), whose figures it places by; a folder that
            `training.save_placer` wrote; or a version in the registry (`champion`, `3`, or a URI of MLflow's).

    Raises:
        ValueError: there is no such placer.
    """
    text = str(name)
    if text.lower() in PRESETS or is_hardware_file(text):
        return RooflinePlacer(hardware(text))
    if Path(text).is_dir():
        return load_placer(Path(text))
    if len(Path(text).parts) > 1:
        raise ValueError(f"there is no folder {text}, so no placer can be loaded from it; check the path")
    entry = next(iter(entry_points(group=GROUP)), None)
    why = "" if entry else "; no registry is installed"
    if entry and VersionReference.of(text).is_valid:
        try:
            placer: Placer = entry.load()(text)
            return placer
        except ImportError as error:
            why = f"; the registry cannot be imported: {error}"
    raise ValueError(
        f"{text!r} is no preset ({', '.join(sorted(PRESETS))}), hardware file, folder or version ({WRITTEN}){why}"
    )
