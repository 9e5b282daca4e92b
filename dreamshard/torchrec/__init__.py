"""The bridge to TorchRec, the only package that imports torchrec. Import it only where it is used: torchrec is optional.

`modules` finds the tables of a model, `configs` and `optimizers` what TorchRec knows of each, `batches` counts their lookups,
and `source` opens a person's own functions as a source of tables; `sharding_plans` makes sharding plans of placements, and
placements of sharding plans, and `plan_file` keeps them; `ways` and `parameter_constraints` say how a table can be
sharded; `planner` runs TorchRec's planner.
"""

from dreamshard.torchrec.batches import RecordedModel, record
from dreamshard.torchrec.modules import tables_of
from dreamshard.torchrec.plan_file import from_json, load_plan, to_json
from dreamshard.torchrec.planned_tables import PlannedTable, planned_tables
from dreamshard.torchrec.sharding_plans import current_plan, placement_plan, sharding_plan
from dreamshard.torchrec.source import ModelSource, open_model, workload_of
from dreamshard.torchrec.ways import check_copies, planned_table, with_default_ways

__all__ = [
    "ModelSource",
    "PlannedTable",
    "RecordedModel",
    "check_copies",
    "current_plan",
    "from_json",
    "load_plan",
    "open_model",
    "placement_plan",
    "planned_table",
    "planned_tables",
    "record",
    "sharding_plan",
    "tables_of",
    "to_json",
    "with_default_ways",
    "workload_of",
]
