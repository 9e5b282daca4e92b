"""dreamshard's costs and bytes as an estimator of TorchRec's planner, so that its proposers and stats table use them.

Not through `EmbeddingPerfEstimatorFactory`: its context of a shard says neither which table that is of nor how often rows are
looked up again.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torchrec.distributed.planner.types import Perf, ShardEstimator, ShardingOption, Storage

from dreamshard.model_table import ModelTable
from dreamshard.search import SearchingPlacer
from dreamshard.search.costs import RooflineCosts
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from dreamshard.torchrec.plans import CACHED, shards_of

_AT_ONCE = 2**22  # numbers of the loads that are in memory at once


class ShardCosts(ShardEstimator):  # type: ignore[misc]  # torchrec is untyped here
    """Milliseconds of each shard alone on a device, and its bytes.

    If shards have ranks, as in a plan, the milliseconds of each rank and phase add up to the prediction for all its shards
    together. Kernels of unknown cost cost infinitely much: a trained network knows no tables in host memory.
    """

    def __init__(self, task: PlacementTask, tables: Sequence[ModelTable], predictor: SearchingPlacer) -> None:
        """Of `tables` as the model has them, in the task's order."""
        self.model = predictor.costs(task)
        self.number = {(table.module_path, table.name): t for t, table in enumerate(tables)}

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: Any = None) -> None:
        """Set `perf` and `storage` of each shard."""
        model, kernels = self.model, ["fused", "dense"]
        if isinstance(model, RooflineCosts) and model.spec.host_bytes_per_s:
            kernels.append(CACHED)
        known = []
        for option in sharding_options:
            is_known = option.compute_kernel in kernels
            known += [(option, self.number[option.path, option.name])] * is_known
            for shard in option.shards:
                shard.storage = Storage(hbm=0, ddr=0)
                shard.perf = Perf(*[0.0 if is_known or not min(shard.size) else math.inf] * 4)
        held, shards = shards_of(model.task, known, model.devices_per_host)
        phases_ms = self._alone_ms(shards)
        if all(shard.rank is not None for shard in held):
            together_ms = model.phases_ms(model.sums(shards)[None])[0]
            phases_ms *= (together_ms / shards.per_device(phases_ms).clamp(min=1e-12))[shards.device]
        for shard, (forward, sent, returned, backward) in zip(held, phases_ms.tolist(), strict=True):
            shard.perf = Perf(forward, sent, backward, returned)

    def _alone_ms(self, shards: Shards) -> Float[Tensor, "S 4"]:
        loads = self.model.loads(shards)
        others = (0, 0), (0, shards.num_devices - 1), (0, 0)  # devices, which are empty
        parts = np.array_split(loads[:, None], 1 + loads.size * shards.num_devices // _AT_ONCE)
        return torch.cat([self.model.phases_ms(np.pad(part, others))[:, 0] for part in parts]).float()
