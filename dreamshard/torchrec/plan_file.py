"""A TorchRec sharding plan as a file that knows which model, ranks and devices it is for.

```
{"world_size": 4, "ranks_per_host": 2, "device_type": "cuda", "tables_sha256": "...",
 "tables": [{"module_path": "ebc", "name": "user", "rows": 100, "dim": 16, "data_type": "FP32"}, ...],
 "plan": {"ebc": {"user": {"sharding_type": ..., "compute_kernel": ..., "ranks": [...], "sharding_spec": [...]}, ...}}}
```

`from_json` also reads a bare `plan`, and what TorchRec's own `ShardingPlan._serialize` gives.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from dreamshard.files.bounds import MOST_COLUMNS, MOST_DEVICES, MOST_ROWS
from dreamshard.files.foreign import brief, file_bytes, json_content, reading
from dreamshard.plan.parsing import whole
from dreamshard.torchrec.parameter_json import modules_to_json, plan_from_json
from dreamshard.torchrec.plan_checks import check_ranks, check_shards
from dreamshard.torchrec.planned_tables import PlannedTable, planned_tables, tables_digest

_PROBLEM = "is not a TorchRec sharding plan"
_ADVICE = "so no model can use it; give what `dreamshard place --format torchrec` wrote"
logger = logging.getLogger(__name__)
_SHOWN = 5  # tables in a message


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A sharding plan and what it is for; fields are None in files that do not say.

    Attributes:
        tables: that the plan shards.
        ranks_per_host: ranks `0..ranks_per_host-1` are on the first host, and so on.
        device_type: `cuda` or `cpu`.
    """

    plan: ShardingPlan
    tables: tuple[PlannedTable, ...] | None = None
    world_size: int | None = None
    ranks_per_host: int | None = None
    device_type: str | None = None


def to_json(
    plan: ShardingPlan,
    tables: Sequence[PlannedTable] | None = None,
    *,
    world_size: int | None = None,
    ranks_per_host: int | None = None,
    device_type: str | None = None,
) -> str:
    """The text of a plan file; `tables` are those of the model, by default none, so that no model is refused."""
    content: dict[str, Any] = {
        "world_size": world_size,
        "ranks_per_host": ranks_per_host,
        "device_type": device_type,
    }
    if tables is not None:
        planned = [table for table in tables if table.module_path in plan.plan]
        content |= {"tables_sha256": tables_digest(planned), "tables": [asdict(table) for table in planned]}
    return json.dumps(content | {"plan": modules_to_json(plan)}, indent=1)


def from_json(text: str | bytes) -> ShardingPlan:
    """The plan of a plan file, for `DistributedModelParallel(model, plan=...)`; `load_plan` also checks the model.

    Raises:
        ValueError: the text is something else.
    """
    return parse_plan_file(text).plan


def parse_plan_file(text: str | bytes, source: str = "this") -> PlanFile:
    """Read the text of a plan file; `source` names it in errors.

    Raises:
        ValueError: the text is something else, or was changed after it was written.
    """
    content = json_content(text, source, _PROBLEM, _ADVICE)
    with reading(source, _PROBLEM, _ADVICE):
        is_file = "plan" in content and not any("sharding_type" in value for value in content["plan"].values())
        modules = content["plan"] if is_file else content
        plan = plan_from_json(modules)
        about = content if is_file else {}
        listed = about.get("tables")
        tables = None if listed is None else tuple(_table(table) for table in listed)
        counts = {name: about.get(name) for name in ("world_size", "ranks_per_host")}
        ranks = {name: None if count is None else whole(count, name, MOST_DEVICES, 1) for name, count in counts.items()}
    if tables is not None and about.get("tables_sha256") != tables_digest(tables):
        raise ValueError(
            f"{source} lists tables that do not have the SHA-256 it gives, so it was changed after it was written; write "
            "it again with `dreamshard place --format torchrec`"
        )
    return PlanFile(
        plan=plan,
        tables=tables,
        world_size=ranks["world_size"],
        ranks_per_host=ranks["ranks_per_host"],
        device_type=about.get("device_type"),
    )


def _table(content: Any) -> PlannedTable:
    table = PlannedTable(**content)
    for text in (table.module_path, table.name, table.data_type):
        if not isinstance(text, str):
            raise TypeError(f"a table is named or typed {brief(text)}, not by a text")
    whole(table.rows, f"rows of {brief(table.name)}", MOST_ROWS, 1)
    whole(table.dim, f"dim of {brief(table.name)}", MOST_COLUMNS, 1)
    return table


def load_plan(
    path: str | Path, model: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]] | None = None
) -> ShardingPlan:
    """The plan of a file, for `DistributedModelParallel(model, plan=...)`, if it was made for this model and these ranks.

    Args:
        path: of what `dreamshard place --format torchrec` wrote.
        model: as it is given to `DistributedModelParallel`; may be on the `meta` device.
        sharders: as they are given to `DistributedModelParallel`; by default TorchRec's own.

    Raises:
        ValueError: there is no such file, it is no plan, its tables are not the model's, its shards do not cover
            them, or it is for other ranks, hosts or devices than the default process group has.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no plan at {path}, so nothing can be sharded by it; check the path")
    file = parse_plan_file(file_bytes(Path(path), _PROBLEM, _ADVICE), str(path))
    if file.tables is None:
        raise ValueError(
            f"{path} does not say which tables it is for, so it cannot be checked against the model; write it again with "
            "`dreamshard place --format torchrec`, or use from_json to load it unchecked"
        )
    _check_tables(str(path), file, planned_tables(model, sharders))
    check_shards(str(path), file)
    check_ranks(str(path), file)
    return file.plan


def _check_tables(path: str, file: PlanFile, tables: Sequence[PlannedTable]) -> None:
    """Compare the file's tables with the model's, module by module.

    Raises:
        ValueError: they differ.
    """
    held = {table for table in tables if table.module_path in file.plan.plan}
    planned = set(file.tables or ())
    if tables_digest(list(held)) == tables_digest(list(planned)):
        if left := sorted({table.module_path for table in tables} - set(file.plan.plan)):
            logger.warning("%s has no plan for the modules %s of the model, which TorchRec will not shard", path, left)
        return
    in_model, in_plan = {table.path: table for table in held}, {table.path: table for table in planned}
    differences = [
        f"{name!r} is {_shape(in_plan[name])} in the plan and {_shape(in_model[name])} in the model"
        for name in sorted(in_plan.keys() & in_model.keys())
        if in_plan[name] != in_model[name]
    ]
    differences += [f"{name!r} is only in the plan" for name in sorted(in_plan.keys() - in_model.keys())]
    differences += [f"{name!r} is only in the model" for name in sorted(in_model.keys() - in_plan.keys())]
    more = f", and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    elsewhere = sorted({table.module_path for table in tables} - set(file.plan.plan))
    hint = f" (the model also has tables in {elsewhere[:_SHOWN]})" if elsewhere else ""
    raise ValueError(
        f"{path} was not made for this model: {'; '.join(differences[:_SHOWN])}{more}{hint}, so tables would be sharded "
        "wrongly; plan again for the model as it is now"
    )


def _shape(table: PlannedTable) -> str:
    return f"{table.rows} x {table.dim} {table.data_type}"
