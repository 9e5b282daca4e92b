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

from dreamshard.placement import SHARDING_TYPES
from dreamshard.search.costs import Predictor, RooflineCosts
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from dreamshard.torchrec.plans import CACHED, DEFAULT_SHARE, planned_type
from dreamshard.workloads.table_list import ModelTable

_AT_ONCE = 2**22  # numbers of the loads that are in memory at once


class ShardCosts(ShardEstimator):  # type: ignore[misc]  # torchrec is untyped here
    """Milliseconds of each shard alone on a device, and its bytes.

    If shards have ranks, as in a plan, the milliseconds of each rank and phase add up to the prediction for all its shards
    together. Kernels of unknown cost cost infinitely much: a trained network knows no tables in host memory.
    """

    def __init__(self, task: PlacementTask, tables: Sequence[ModelTable], predictor: Predictor) -> None:
        """Of `tables` as the model has them, in the task's order."""
        self.model = predictor.costs(task)
        self.number = {(table.module_path, table.name): t for t, table in enumerate(tables)}

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: Any = None) -> None:
        """Set `perf` and `storage` of each shard."""
        rows, held, kernels = [], [], ["fused", "dense"]
        if isinstance(self.model, RooflineCosts) and self.model.spec.host_bytes_per_s:
            kernels.append(CACHED)
        for option in sharding_options:
            share = math.nan
            if option.compute_kernel == CACHED:
                share = min(max(option.cache_load_factor or DEFAULT_SHARE, 1e-9), 1.0)
            kind = SHARDING_TYPES.index(planned_type(option.sharding_type))
            is_known = option.compute_kernel in kernels
            for shard in option.shards:
                shard.storage = Storage(hbm=0, ddr=0)
                shard.perf = Perf(*[0.0 if is_known or not min(shard.size) else math.inf] * 4)
                if is_known and min(shard.size):  # tables of fewer rows than devices leave some without
                    held.append(shard)
                    ends = [(start, start + size) for start, size in zip(shard.offset, shard.size, strict=True)]
                    table = self.number[option.path, option.name]
                    rows.append((table, shard.rank or 0, kind, *ends[0], *ends[1], share))
        fields = torch.tensor(rows, dtype=torch.float64).reshape(-1, 8).T
        table, device, kinds, first_row, last_row, first_column, last_column = fields[:7].long()
        shards = Shards(
            self.model.task,
            table,
            device,
            kinds,
            torch.stack([first_row, last_row], dim=1),
            torch.stack([first_column, last_column], dim=1),
            fields[7],
            self.model.devices_per_host,
        )
        phases_ms = self._alone_ms(shards)
        if all(shard.rank is not None for shard in held):
            alone_ms = phases_ms.new_zeros(shards.num_devices, 4).index_add_(0, device, phases_ms)
            together_ms = self.model.phases_ms(self.model.sums(shards)[None])[0]
            phases_ms *= (together_ms / alone_ms.clamp(min=1e-12))[device]
        on_device, on_host = shards.device_bytes.tolist(), shards.host_bytes.tolist()
        for shard, phases, hbm, ddr in zip(held, phases_ms.tolist(), on_device, on_host, strict=True):
            shard.perf = Perf(phases[0], phases[1], bwd_comms=phases[2], bwd_compute=phases[3])
            shard.storage = Storage(hbm=hbm, ddr=ddr)

    def _alone_ms(self, shards: Shards) -> Float[Tensor, "S 4"]:
        loads = self.model.loads(shards)
        found = []
        for part in np.array_split(loads, 1 + loads.size * shards.num_devices // _AT_ONCE):
            alone = np.zeros((len(part), shards.num_devices, part.shape[1]))
            alone[:, 0] = part
            found.append(self.model.phases_ms(alone)[:, 0])
        return torch.cat(found).float()
