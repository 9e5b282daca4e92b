"""The plan that is in use, dreamshard's or TorchRec's."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dreamshard.moving import InUse
    from dreamshard.plan import Plan
    from dreamshard.tables import Tables
    from dreamshard.tasks import PlacementTask


def read_in_use(
    path: Path, task: "PlacementTask", rows_before: Mapping[str, int] | None, note: Callable[[str], None]
) -> "InUse":
    """What a plan in use holds of the task's tables.

    Args:
        path: of dreamshard's plan, or of TorchRec's.
        task: of today's tables.
        rows_before: of the tables then, by name; None for those of TorchRec's file, or today's.
        note: gets a sentence where rows are not known.

    Raises:
        ValueError: the file is missing, no plan, or one of other tables.
    """
    from dreamshard.moving import InUse

    plan, rows = read_any_plan(path, task.tables, task.devices_per_host, task.num_devices)
    if not (plan.rows or rows or rows_before):
        note(
            f"warning: {path} does not say how many rows its tables have, so a table whose rows have changed counts as the "
            "same; give the list as it was with --current-tables"
        )
    return InUse.of(plan, task, rows_before or rows)


def read_any_plan(
    path: Path, tables: "Tables", devices_per_host: int | None, num_devices: int = 0
) -> "tuple[Plan, dict[str, int]]":
    """A plan of dreamshard's or TorchRec's, and the rows of its tables as far as the file says.

    Args:
        path: of JSON.
        tables: of the model.
        devices_per_host: where the file does not say.
        num_devices: the fewest where the file does not say how many there are.

    Raises:
        ValueError: the file is missing, or no plan.
    """
    from dreamshard.files.foreign import json_content
    from dreamshard.plan import parse_plan, read_plan

    if not path.is_file():
        read_plan(path)  # says so
    problem, advice = "is not a plan", "so nothing can be compared with it; give the plan in use as JSON"
    text = path.read_bytes()
    content = json_content(text, path, problem, advice)
    if not isinstance(content, dict) or not content or "shards" in content:
        return parse_plan(text, str(path)), {}
    try:
        from dreamshard.torchrec import current_plan
    except ImportError as error:
        raise ValueError(
            f"{path} looks like a plan of TorchRec, which cannot be imported ({error}), so it is not read; install it with "
            "`pip install --no-deps torchrec==1.8.0`, or give a plan of dreamshard's"
        ) from error
    plan = current_plan(text, tables, devices_per_host=devices_per_host, name=str(path))
    if content.get("world_size") is None:
        plan = replace(plan, num_devices=max(plan.num_devices, num_devices))
    return plan, {each["name"]: each["rows"] for each in content.get("tables") or ()}
