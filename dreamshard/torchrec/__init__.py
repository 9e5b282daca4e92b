"""The bridge to TorchRec, the only package that imports torchrec. Import it only if it is used: torchrec is optional.

discovery       the tables of a model, by what its sharders shard
ways            the ways to shard that sharders and constraints allow
sharding_plans  a placement as a `ShardingPlan`, and back
plan_file       a `ShardingPlan` as JSON, and back
batches         lookups counted in sample batches
source          a person's own functions as a source of tables
planner         TorchRec's planner as a placer
"""

from dreamshard.torchrec.batches import RecordedModel, record
from dreamshard.torchrec.discovery import discover, tables_of
from dreamshard.torchrec.plan_file import from_json, load_plan, to_json
from dreamshard.torchrec.sharding_plans import current_plan, sharding_plan
from dreamshard.torchrec.source import ModelSource, open_model, workload_of
from dreamshard.torchrec.ways import narrowed, refuse_plain

__all__ = [
    "ModelSource",
    "RecordedModel",
    "current_plan",
    "discover",
    "from_json",
    "load_plan",
    "narrowed",
    "open_model",
    "record",
    "refuse_plain",
    "sharding_plan",
    "tables_of",
    "to_json",
    "workload_of",
]
