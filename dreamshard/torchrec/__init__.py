"""The bridge to TorchRec. Import it only if it is used: torchrec is optional.

models          the tables of a model that its sharders shard
sharding_types  the sharding types that sharders and constraints allow
plans           a placement as a `ShardingPlan`, and back
profiling       traces of a job's steps, for `dreamshard learn`
batches         lookups counted in sample batches, and your own functions as a source of tables
"""

from dreamshard.torchrec.batches import open_model, record
from dreamshard.torchrec.models import discover, tables_of
from dreamshard.torchrec.plans import current_plan, load_plan, reshard_delta, sharding_options
from dreamshard.torchrec.profiling import profiled_steps
from dreamshard.torchrec.sharding_types import narrowed

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
