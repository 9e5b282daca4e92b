"""What a person gives as limits of a plan: room on each device, and constraints."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dreamshard.constraints import Constraints
    from dreamshard.hardware.accelerator import AcceleratorSpec

_FILES = (".yaml", ".yml", ".json")


def memory_bytes_of(memory_gb: float | None, spec: "AcceleratorSpec | None", note: Callable[[str], None]) -> int:
    """Room for tables on each device: as given, else most of what the hardware has; constraints may say otherwise.

    Raises:
        ValueError: neither is given.
    """
    from dreamshard.files.text import gib
    from dreamshard.testbeds.base import TABLES_SHARE

    if memory_gb is not None:
        given = round(memory_gb * 2**30)
        if spec is not None and given > spec.memory_bytes:
            note(f"--memory-gb {memory_gb:g} is more than the {gib(spec.memory_bytes)} that {spec.name} has in all")
        return given
    if spec is None:
        raise ValueError(
            "neither hardware nor memory is given, so the room for tables on each device is unknown; give one of them"
        )
    memory_bytes = round(TABLES_SHARE * spec.memory_bytes)
    note(f"{gib(memory_bytes)} for tables on each device, {TABLES_SHARE:.1%} of what {spec.name} has (--memory-gb)")
    return memory_bytes


def file_or_text(given: str | None) -> Path | str | None:
    """Constraints from a field that takes both: one word that ends as a file's name does is a path, all else the text."""
    if given is None or not given.strip():
        return None
    is_path = len(given.split()) == 1 and given.strip().endswith(_FILES)
    return Path(given.strip()) if is_path else given


def constraints_of(
    given: Path | str | None,
    tables: Sequence[str],
    num_devices: int,
    *,
    sharding: str,
    reserve_gb: float | None,
    cache: bool,
) -> "Constraints":
    """What the plan must respect: the options, and where they say nothing the file or text.

    Args:
        given: path of a file, or the text of one; None without either.
        tables: names that the file may use.
        num_devices: `D`.
        sharding: ways to shard where the file names none.
        reserve_gb: None for the file's, or none.
        cache: True instead of the file's.

    Raises:
        ValueError: the file or text is wrong, or there is no such way to shard.
    """
    from dreamshard.constraints import Constraints, parse_constraints, parse_sharding, read_constraints

    constraints = Constraints(sharding_types=parse_sharding(sharding))
    if isinstance(given, Path):
        constraints = read_constraints(given, tables, num_devices, constraints)
    elif given is not None:
        constraints = parse_constraints(given, tables, num_devices, constraints)
    if reserve_gb is not None:
        constraints = replace(constraints, reserve_bytes=round(reserve_gb * 2**30))
    return replace(constraints, caching=True) if cache else constraints
