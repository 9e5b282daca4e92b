"""Hardware of one's own: a YAML or JSON file of figures with units, from nothing or from a preset.

    base: h100                    # a preset whose figures hold where the file gives none
    memory: 94 GB
    devices_per_host: 4
    network_bandwidth: 200 Gbit/s  # of each device, one direction

The name of the hardware is the file's, or `name`, with a digest of all figures: other figures are other hardware.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dreamshard.files.digests import digest
from dreamshard.files.foreign import brief, file_bytes, json_content, yaml_content
from dreamshard.testbeds.accelerators.link_curves import MEASURED_LINKS
from dreamshard.testbeds.accelerators.nvidia_specs import DATASHEET_LINKS
from dreamshard.testbeds.accelerators.specs import SPECS, AcceleratorSpec, accelerator

SUFFIXES = (".yaml", ".yml", ".json")
"""Endings of hardware files."""

_BYTES = {
    prefix + unit: factor * size
    for unit, size in (("B", 1.0), ("bit", 0.125), ("b", 0.125))
    for prefix, factor in (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
} | {f"{prefix}iB": 2.0 ** (10 * power) for power, prefix in enumerate("KMGT", start=1)}
_PER_SECOND = {f"{unit}/s": size for unit, size in _BYTES.items()}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_HERTZ = {"MHz": 1e6, "GHz": 1e9}
_LARGEST = 2.0**53  # of a figure in its own unit, such as bytes per second
_LONGEST_FIGURE = 100  # characters: matching takes the cube of a long one's time
_NUMBER = re.compile(r"\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>\S*)\s*")


@dataclass(frozen=True)
class _Figure:
    """A figure of a hardware file.

    Attributes:
        field: of `AcceleratorSpec`.
        units: size of each unit; None for a whole number without one.
        example: with its unit.
        whole: whether the field is a whole number.
    """

    field: str
    units: Mapping[str, float] | None
    example: str
    whole: bool = False


FIGURES: dict[str, _Figure] = {
    "memory": _Figure("memory_bytes", _BYTES, "80 GB", whole=True),
    "memory_bandwidth": _Figure("memory_bytes_per_s", _PER_SECOND, "3.35 TB/s"),
    "cache": _Figure("l2_bytes", _BYTES, "50 MiB", whole=True),
    "cache_bandwidth": _Figure("l2_bytes_per_s", _PER_SECOND, "5.6 TB/s"),
    "multiprocessors": _Figure("num_sms", None, "132", whole=True),
    "warps_per_multiprocessor": _Figure("warps_per_sm", None, "64", whole=True),
    "clock": _Figure("clock_hz", _HERTZ, "1.83 GHz"),
    "launch_latency": _Figure("launch_s", _SECONDS, "3.5 us"),
    "devices_per_host": _Figure("devices_per_node", None, "8", whole=True),
    "link_bandwidth": _Figure("link_bytes_per_s", _PER_SECOND, "450 GB/s"),
    "link_latency": _Figure("link_latency_s", _SECONDS, "16 us"),
    "network_bandwidth": _Figure("network_bytes_per_s", _PER_SECOND, "400 Gbit/s"),
    "network_latency": _Figure("network_latency_s", _SECONDS, "35 us"),
    "host_bandwidth": _Figure("host_bytes_per_s", _PER_SECOND, "63 GB/s"),
}
"""Keys of a hardware file besides `name`, `base` and `link`."""
OPTIONAL = ("host_bandwidth",)
"""Keys without which all but tables in host memory has a cost."""
LINKS = (*MEASURED_LINKS, *DATASHEET_LINKS)
"""Values of `link`: a kind of link, or a GPU whose measured links are meant."""


def is_hardware_file(name: str) -> bool:
    """Whether the name of some hardware is a file's rather than a preset's."""
    return name.endswith(SUFFIXES)


def hardware(name: str) -> AcceleratorSpec:
    """The preset called `name`, or the hardware described by the file at `name`.

    Raises:
        ValueError: there is no such preset or file, or a key, unit or figure in it is wrong.
    """
    if is_hardware_file(name):
        return read_hardware(Path(name))
    if name not in SPECS:
        raise ValueError(
            f"there is no hardware {name!r}, so its costs are unknown; give one of {sorted(SPECS)}, or a file of your "
            "own that ends in .yaml or .json (docs/hardware.md)"
        )
    return SPECS[name]


def read_hardware(path: Path) -> AcceleratorSpec:
    """The hardware described by a file.

    Raises:
        ValueError: the file is missing, or a key, unit or figure in it is wrong.
    """
    content = _content(path)
    unknown = sorted(set(content) - set(FIGURES) - {"name", "base", "link"})
    if unknown:
        raise ValueError(
            f"{path} has the unknown keys {brief(unknown)}, whose figures would be ignored; the keys are name, base, link, "
            f"{', '.join(FIGURES)}"
        )
    given: dict[str, Any] = {
        FIGURES[key].field: _number(path, key, value) for key, value in content.items() if key in FIGURES
    }
    if "base" in content:
        spec = replace(_base(path, str(content["base"])), **given)
    else:
        missing = [key for key, figure in FIGURES.items() if figure.field not in given and key not in OPTIONAL]
        if missing:
            raise ValueError(
                f"{path} lacks {', '.join(missing)}, without which no cost can be computed; give them, or start from a "
                f"preset with `base: h100` (presets: {', '.join(sorted(SPECS))})"
            )
        spec = AcceleratorSpec(name="", **given)
    spec = replace(spec, link_curve=_link(path, content, spec.link_curve))
    figures = {name: value for name, value in asdict(spec).items() if name != "name"}
    return replace(spec, name=f"{content.get('name', path.stem)}-{digest(repr(figures), 6)}")


def _link(path: Path, content: Mapping[str, Any], base: str | None) -> str | None:
    """How the link is modelled: as the file says, else as the preset's."""
    link = content.get("link", base)
    if "link" in content and link not in LINKS:
        raise ValueError(f"{path} has the unknown link {brief(link)}; use one of {', '.join(LINKS)}")
    if "link_latency" in content and link in DATASHEET_LINKS:
        raise ValueError(
            f"{path} gives link_latency, but links are as measured on {link}, latency included, so it would be ignored; "
            f"leave it out, or add `link: {next(kind for kind, gpus in MEASURED_LINKS.items() if link in gpus)}` for links "
            "of that latency"
        )
    return None if link is None else str(link)


def _content(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"there is no hardware file {path}, so its figures are unknown; check the path")
    problem, advice = "is neither YAML nor JSON", "so its figures are unknown; correct it"
    text = file_bytes(path, problem, advice)
    content = (json_content if path.suffix == ".json" else yaml_content)(text, path, problem, advice)
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no figures; give one per line, for example `memory: 80 GB`")
    name = content.get("name", path.stem)
    if not isinstance(name, str | int) or not str(name) or not str(name).isprintable():
        raise ValueError(
            f"{path} gives name as {brief(name)}, which plans cannot show; write for example `name: my-cluster`"
        )
    return {str(key): value for key, value in content.items()}


def _base(path: Path, name: str) -> AcceleratorSpec:
    try:
        return accelerator(name)
    except ValueError as error:
        raise ValueError(f"{path} starts from `base: {name}`, but {error}") from error


def _number(path: Path, key: str, value: Any) -> float | int:
    """The figure in the field's own unit.

    Raises:
        ValueError: it is no number above zero, or its unit is missing or unknown.
    """
    figure = FIGURES[key]
    text = str(value)
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST_FIGURE else None
    advice = f"write for example `{key}: {figure.example}`"
    if match is None:
        raise ValueError(f"{path} gives {key} as {brief(value)}, which is no number with a unit; {advice}")
    number, unit = float(match["number"]), match["unit"]
    if figure.units is None and unit:
        raise ValueError(f"{path} gives {key} as {brief(value)}, but it is a count without a unit; {advice}")
    if figure.units is not None and unit not in figure.units:
        problem = f"in the unknown unit {brief(unit)}" if unit else "without a unit"
        raise ValueError(f"{path} gives {key} {problem}; use one of {', '.join(figure.units)}: {advice}")
    size = number * (figure.units[unit] if figure.units else 1)
    if not 0 < size <= _LARGEST:
        raise ValueError(
            f"{path} gives {key} as {brief(value)}, but it divides or bounds a cost, so it must be above zero and at most "
            f"{_LARGEST:.0e}; {advice}"
        )
    if figure.whole and figure.units is None and size != round(size):
        raise ValueError(f"{path} gives {key} as {brief(value)}, but it is a whole number; {advice}")
    return round(size) if figure.whole else size
