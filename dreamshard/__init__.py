"""dreamshard: learn what embedding tables cost, and place them on devices; `import dreamshard as ds` gives all that it takes.

`docs/all-of-dreamshard.md` shows it in one go, `docs/architecture.md` lists the modules.

Letters of dimensions, in every signature: B batch (placements or episodes), T tables, D devices, F features, L latent,
N lookups or shards, P distinct tables of a dataset, S samples or starts.
Costs are in milliseconds (`_ms`), memory in bytes (`_bytes`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dreamshard.constraints import Constraints
from dreamshard.costs import CostSample, DeviceCosts
from dreamshard.plan import Plan, read_plan
from dreamshard.tables import Placement, Tables, TableSharding
from dreamshard.tasks import NoPlacementError, PlacementTask, Placer

if TYPE_CHECKING:
    from dreamshard.planning import compare_plans, explain, load_placer, place, read_tables
    from dreamshard.testbeds import Testbed, open_testbed
    from dreamshard.torchrec import current_plan, load_plan, profiled_steps, record, tables_of
    from dreamshard.torchrec.planner import DreamShardPlanner
    from dreamshard.training import TrainingConfig, save_placer, train

__all__ = [
    "Constraints",
    "CostSample",
    "DeviceCosts",
    "DreamShardPlanner",
    "NoPlacementError",
    "Placement",
    "PlacementTask",
    "Placer",
    "Plan",
    "TableSharding",
    "Tables",
    "Testbed",
    "TrainingConfig",
    "compare_plans",
    "current_plan",
    "explain",
    "load_placer",
    "load_plan",
    "open_testbed",
    "place",
    "profiled_steps",
    "read_plan",
    "read_tables",
    "record",
    "save_placer",
    "tables_of",
    "train",
]

_MODULES = {
    "planning": ("compare_plans", "explain", "load_placer", "place", "read_tables"),
    "testbeds": ("Testbed", "open_testbed"),
    "torchrec": ("current_plan", "load_plan", "profiled_steps", "record", "tables_of"),
    "torchrec.planner": ("DreamShardPlanner",),
    "training": ("TrainingConfig", "save_placer", "train"),
}
"""Names of modules that compile or need TorchRec: imported when they are first used."""


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"dreamshard.{module}"), name)
    raise AttributeError(f"module 'dreamshard' has no attribute {name!r}")
