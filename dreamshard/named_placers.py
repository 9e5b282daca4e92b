"""A placer by name: hardware, a folder, or a version of a registry that is installed beside this package."""

from importlib.metadata import entry_points
from pathlib import Path

from dreamshard import trained
from dreamshard.hardware.accelerator import PRESETS, hardware, is_hardware_file
from dreamshard.placer import Placer
from dreamshard.search import RooflinePlacer
from dreamshard.trained import TrainedPlacer
from dreamshard.version_references import WRITTEN, VersionReference

GROUP = "dreamshard.placers"
"""Entry points that load a placer by the name of a version: a function from `str` to `Placer`."""


def named_placer(name: str | Path) -> Placer:
    """The placer of a name.

    Args:
        name: a preset (`a100`) or a hardware file (`cluster.yaml`), whose figures it places by; a folder that
            `trained.save_placer` wrote; or a version in the registry (`version_references`): `champion`, `3`, `paper:3`.

    Raises:
        ValueError: there is no such placer.
    """
    text = str(name)
    if text in PRESETS or is_hardware_file(text):
        return RooflinePlacer(hardware(text))
    if Path(text).is_dir():
        return trained.load_placer(Path(text))
    if len(Path(text).parts) > 1:
        raise ValueError(f"there is no folder {text}, so no placer can be loaded from it; check the path")
    return _registered(text)


def _registered(version: str) -> TrainedPlacer:
    """A version of the registry."""
    loader = next(iter(entry_points(group=GROUP)), None)
    if loader is None or not VersionReference.of(version).is_valid:
        raise ValueError(
            f"{version!r} is neither a preset ({', '.join(sorted(PRESETS))}), a hardware file nor a folder, nor a version of "
            f"the registry ({WRITTEN}); name one of these"
        )
    try:
        load = loader.load()
    except ImportError as error:
        raise ValueError(
            f"{version!r} is neither a preset ({', '.join(sorted(PRESETS))}), a hardware file nor a folder, and the registry "
            f"of versions cannot be imported ({error}); install dreamshard with its storage package, or name another"
        ) from error
    placer: TrainedPlacer = load(version)
    return placer
