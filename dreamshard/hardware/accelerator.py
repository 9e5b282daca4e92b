"""Accelerators: the figures that costs are computed from, as presets and as files of one's own.

    base: h100                     # a preset whose figures hold where the file gives none
    memory: 94 GB
    devices_per_host: 4
    network_bandwidth: 200 Gbit/s  # of each device, one direction

Presets are such files, too (`presets/`). The name of one's own hardware is the file's, or `name`, with a digest of all
figures: other figures are other hardware.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from dreamshard.costs import is_named
from dreamshard.files import InputError, brief, did_you_mean, digest, reading

DEFAULT_PRESET = "rtx2080ti"
"""The paper's device."""
MEASURED_LINKS: dict[str, tuple[str, ...]] = {
    "nvlink": ("a100", "h100", "h200", "b200", "b300", "gb200", "gb300"),
    "pcie": ("l40s", "rtx_pro_6000"),
}
"""GPUs with measured collectives by the kind of their link."""
LINKS = (*MEASURED_LINKS, *(gpu for gpus in MEASURED_LINKS.values() for gpu in gpus))
"""Values of `link`: a kind of link, or a GPU whose measured links are meant."""

_PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BYTES = {f"{prefix}B": Decimal(size) for prefix, size in _PREFIXES.items()}
_BYTES |= {f"{prefix}iB": Decimal(2 ** (10 * power)) for power, prefix in enumerate("KMGT", start=1)}
_BYTES |= {f"{prefix}{bit}": Decimal(size) / 8 for prefix, size in _PREFIXES.items() for bit in ("bit", "b")}
_QUANTITY = re.compile(r"(?P<number>\d*\.?\d+(?:[eE][-+]?\d{1,3})?)\s*(?P<unit>[A-Za-z/]+)")
_SECONDS = {"ns": Decimal("1e-9"), "us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1)}
_POSITIVE = Field(gt=0, le=2.0**53)


def _in_units(units: Mapping[str, Decimal]) -> BeforeValidator:
    """Read `80 GB` as the file gives it; a number is in the field's own unit already."""

    def parse(value: object) -> object:
        if not isinstance(value, str):
            return value
        match = _QUANTITY.fullmatch(value.strip())
        if match is None or match["unit"] not in units:
            raise PydanticCustomError("unit", f"give a number above zero with a unit such as {', '.join([*units][:4])}")
        return Decimal(match["number"]) * units[match["unit"]]

    return BeforeValidator(parse)


Count = Annotated[int, _POSITIVE]
Bytes = Annotated[int, _in_units(_BYTES), _POSITIVE]
BytesPerSecond = Annotated[float, _in_units({f"{unit}/s": size for unit, size in _BYTES.items()}), _POSITIVE]
Seconds = Annotated[float, _in_units(_SECONDS), _POSITIVE]
Hertz = Annotated[float, _in_units({"MHz": Decimal(10**6), "GHz": Decimal(10**9)}), _POSITIVE]


def _name_in_files(field: str) -> str:
    """Without the unit, which a quantity in a file has."""
    return re.sub("_(bytes|s|hz)$", "", field.replace("_bytes_per_s", "_bandwidth"))


@dataclass(
    frozen=True,
    kw_only=True,
    config=ConfigDict(extra="forbid", validate_by_name=True, alias_generator=_name_in_files),
)
class AcceleratorSpec:
    """One kind of accelerator in its usual node.

    Attributes:
        memory_bytes_per_s: peak bandwidth of the device memory.
        cache_bytes: last-level cache, shared by the whole device.
        cache_bytes_per_s: read bandwidth of that cache, measured by microbenchmarks if there are any.
        multiprocessors: each with `warps_per_multiprocessor` resident warps and the boost clock `clock_hz`.
        launch_latency_s: from the end of one kernel to the first instruction of the next.
        host_wait_s: of kernels for the host in the two calls of a step, besides launches; None for a host that runs ahead.
        link_bytes_per_s: to the other devices of the node, one direction.
        link_latency_s: of one all-to-all within a node.
        devices_per_host: that reach each other by that link.
        network_bytes_per_s: each device's share of the node's network, one direction.
        network_latency_s: of one all-to-all across nodes.
        link: one of `LINKS`. A GPU's name: as measured on it, and a link of another bandwidth takes as long for
            proportionally more bytes. A kind of link: `link_latency_s`, and the share of the bandwidth that measured links
            of this kind reach. None: latency, and the whole bandwidth.
        shared_bytes_per_s: of the path through a host's memory that all bytes between its devices take, together; None for
            links from device to device, or if `link` names a GPU.
        host_memory_bytes: of a node, for tables in host memory; None if unknown.
        host_bytes_per_s: to the host's memory, one direction; None if unknown: tables in host memory have no cost.
    """

    name: str
    memory_bytes: Bytes
    memory_bytes_per_s: BytesPerSecond
    cache_bytes: Bytes
    cache_bytes_per_s: BytesPerSecond
    multiprocessors: Count
    warps_per_multiprocessor: Count
    clock_hz: Hertz
    launch_latency_s: Seconds
    devices_per_host: Count
    link_bytes_per_s: BytesPerSecond
    link_latency_s: Seconds
    network_bytes_per_s: BytesPerSecond
    network_latency_s: Seconds
    host_bytes_per_s: BytesPerSecond | None = None
    host_memory_bytes: Bytes | None = None
    host_wait_s: Seconds | None = None
    shared_bytes_per_s: BytesPerSecond | None = None
    link: Annotated[str, Field(pattern=f"^({'|'.join(LINKS)})$")] | None = None


def read_hardware(path: Path) -> AcceleratorSpec:
    """Read a hardware file; a ValueError says that the file is missing, or a key, unit or figure in it is wrong."""
    with reading(path, "is not a hardware file", "see docs/hardware.md"):
        spec = _parsed(path)
        if "link_latency" in yaml.safe_load(path.read_bytes()) and spec.link in PRESETS:
            raise InputError(
                f"{path}: link_latency is ignored, as links are as measured on {spec.link}; leave it out, or add "
                "`link: nvlink` or `link: pcie`"
            )
    figures = repr(replace(spec, name=""))
    return replace(spec, name=f"{spec.name}-{digest(figures)[:6]}")


def hardware(name: str) -> AcceleratorSpec:
    """The preset called `name`, in any case, or the hardware of that file; a ValueError says that it is missing or wrong."""
    if is_hardware_file(name):
        return read_hardware(Path(name))
    if name.lower() not in PRESETS:
        raise ValueError(
            f"there is no hardware {name!r}{did_you_mean(name, PRESETS)}; give a preset of docs/hardware.md, or a .yaml file"
        )
    return PRESETS[name.lower()]


def is_hardware_file(name: str) -> bool:
    """Whether the name of some hardware is a file's rather than a preset's."""
    return name.endswith((".yaml", ".yml", ".json"))


def preset_of(device: str) -> AcceleratorSpec | None:
    """The preset of the model that a device's driver reports, the one of most words; None if there is none."""
    matches = [name for name in PRESETS if is_named(name, device)]
    return PRESETS[max(matches, key=len)] if matches else None


def _content(path: Path) -> dict[str, str]:
    """Keys and values of a file, with those of its base; counts and quantities as text."""
    content = yaml.safe_load(path.read_bytes())
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no figures; give one per line, for example `memory: 80 GB`")
    figures = {str(key): str(value) for key, value in content.items()}
    if not (base := figures.pop("base", "").lower()):
        return figures
    if base not in (names := [file.stem for file in _PRESETS.glob("*.yaml")]):
        raise InputError(f"{path}: there is no preset {brief(base)}{did_you_mean(base, names)}; see docs/hardware.md")
    return _content(_PRESETS / f"{base}.yaml") | figures


def _parsed(path: Path) -> AcceleratorSpec:
    figures = {"name": path.stem, **_content(path)}
    return TypeAdapter(AcceleratorSpec).validate_python(figures, by_name=False, by_alias=True)


_PRESETS = Path(__file__).parent / "presets"
PRESETS: dict[str, AcceleratorSpec] = {path.stem: _parsed(path) for path in sorted(_PRESETS.glob("*.yaml"))}
"""Presets by name."""
