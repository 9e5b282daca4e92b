"""The bridge to TorchRec. Import it only if it is used: torchrec is optional.

models     the tables of a model that its sharders shard, their lookups counted in sample batches, and your own functions as
           a source of tables
plans      a placement as a `ShardingPlan`, and back; the sharding types that sharders and constraints allow
profiling  traces of a job's steps, for `dreamshard learn`
"""

from dreamshard.torchrec.models import discover, open_model, record, tables_of
from dreamshard.torchrec.plans import current_plan, load_plan, narrowed, reshard_delta, sharding_options
from dreamshard.torchrec.profiling import profiled_steps

__all__ = [
    "current_plan",
    "discover",
    "load_plan",
    "narrowed",
    "open_model",
    "profiled_steps",
    "record",
    "reshard_delta",
    "sharding_options",
    "tables_of",
]
