"""The setting of the scheduled flows: which tables they look at, and what they train for. Kept in `<home>/schedule.json`.

`dreamshard up` and `deploy` write it; where its values come from is decided in `flows.servers.scheduled_setting`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dreamshard.files.atomic import write

FILE = "schedule.json"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What `watch` looks at and the scheduled `retrain` trains for. None: not set, so the recipe's value holds.

    The fields are those of a retraining (`flows.forms.options.RetrainingOptions`) under the same names, without its seed.

    Attributes:
        source: identity of the tables' source, see `dreamshard.workloads.identity`.
        memory_gb: room for tables on each device, GiB.
        reserve_gb: of that, kept free for dense parameters, GiB.
    """

    recipe: str | None = None
    source: str | None = None
    batches: str | None = None
    num_batches: int | None = None
    testbed: str | None = None
    num_devices: int | None = None
    devices_per_host: int | None = None
    memory_gb: float | None = None
    reserve_gb: float | None = None
    tables_per_task: int | None = None
    batch_size: int | None = None
    mode: str | None = None
    exchange_devices: str | None = None
    algorithm: str | None = None

    def parameters(self) -> dict[str, Any]:
        """The fields that are set, as parameters of the flows."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> "Schedule":
        """The schedule in a flow's parameters; empty ones are not set, and other parameters are left out."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in parameters.items() if name in names and value not in (None, "")})


def read_schedule(home: Path) -> Schedule:
    """The schedule that the home keeps; nothing is set before the first.

    Raises:
        ValueError: the file is damaged, or another version of dreamshard wrote it.
    """
    file = home / FILE
    if not file.exists():
        return Schedule()
    try:
        parameters = TypeAdapter(dict[str, Any]).validate_json(file.read_text())
        return TypeAdapter(Schedule).validate_python(parameters, extra="forbid")
    except (ValidationError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{file} is no setting of the scheduled flows ({_reason(error)}), so what they retrain for is unknown; "
            "remove it, and give the options of `dreamshard up` again"
        ) from error


def _reason(error: ValidationError | UnicodeDecodeError) -> str:
    """What is wrong with the first wrong field, or with the file."""
    if isinstance(error, UnicodeDecodeError):
        return str(error)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def write_schedule(home: Path, schedule: Schedule) -> None:
    """Keep the schedule in the home, so that a later start without options has it too."""
    write(home / FILE, json.dumps(schedule.parameters(), indent=2) + "\n")
