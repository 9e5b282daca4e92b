"""The bridge to TorchRec, the only package that imports torchrec. Import it only where it is used: torchrec is optional.

`modules` finds the tables of a model, `configs` and `optimizers` what TorchRec knows of each; `exchange` writes sharding
plans; `planner` runs its planner and its estimator.
"""

from dreamshard.torchrec.exchange import from_json, sharding_plan, to_json
from dreamshard.torchrec.modules import tables_of

__all__ = ["from_json", "sharding_plan", "tables_of", "to_json"]
