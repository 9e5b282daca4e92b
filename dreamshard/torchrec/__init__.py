"""The bridge to TorchRec, the only package that imports torchrec. Import it only where it is used: torchrec is optional.

`exchange` reads TorchRec's modules and writes its sharding plans; `planner` runs its planner and its estimator.
"""

from dreamshard.torchrec.exchange import from_json, sharding_plan, tables_of, to_json

__all__ = ["from_json", "sharding_plan", "tables_of", "to_json"]
