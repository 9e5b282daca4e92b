"""What TorchRec's `EmbeddingPerfEstimator` says of shards, sharded in any way."""

import torch
from jaxtyping import Float
from torch import Tensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.types import Shard, ShardingOption
from torchrec.distributed.planner.utils import build_sharder_data_map, sharder_name
from torchrec.distributed.types import CacheParams

from dreamshard.placed_shards import PlacedShards
from dreamshard.sharding import SHARDING_TYPES
from dreamshard.tasks import PlacementTask
from dreamshard.torchrec.planner_inputs import (
    Bandwidths,
    local_batch_size,
    planner_constraints,
    planner_module,
    topology,
)


class ShardEstimates:
    """TorchRec's estimates for the shards of one task.

    A device's estimate is the sum over its shards, collectives included; a step's, which the planner minimises, is that of
    the slowest device. Nothing is shared between the tables of a device, and no collective has a latency.

    Args:
        task: whose shards these are; its batch, else that in which the lookups were counted, is split over the devices.
        bandwidths: of the devices.
        devices_per_host: devices that share a host.
    """

    def __init__(self, task: PlacementTask, bandwidths: Bandwidths, devices_per_host: int) -> None:
        self.task = task
        devices = topology(task.num_devices, devices_per_host, 2**62, bandwidths)
        self._names, constraints = planner_constraints(task.tables, None, [])
        self._module = planner_module(task, self._names)
        self._estimator = EmbeddingPerfEstimatorFactory.create(
            "default_estimator", topology=devices, constraints=constraints
        )
        sharder = EmbeddingBagCollectionSharder()
        self._sharders = build_sharder_data_map({sharder_name(sharder.module_type): sharder})
        self._pooling = [max(pooling, 1e-6) for pooling in task.tables.pooling_factor.tolist()]
        self._batch_size = local_batch_size(task)

    def shard_ms(self, shards: PlacedShards) -> Float[Tensor, "S 4"]:
        """Milliseconds of each shard by `PHASES`; what a cached table's prefetch takes counts as forward compute."""
        rows, columns = shards.rows.tolist(), shards.columns.tolist()
        in_host = (shards.host_bytes > 0).tolist()
        kinds = [SHARDING_TYPES[kind] for kind in shards.sharding_type.tolist()]
        estimated: dict[tuple[object, ...], Shard] = {}
        options, keys = [], []
        for t, kind, (first, last), (start, end), cached, share in zip(
            shards.table.tolist(), kinds, rows, columns, in_host, shards.cached_share.tolist(), strict=True
        ):
            key = (t, kind, last - first, end - start, share if cached else None)
            keys.append(key)
            if key not in estimated:
                estimated[key] = Shard(size=[last - first, end - start], offset=[first, start])
                options.append(self._option(t, kind, estimated[key], share if cached else None))
        if options:
            self._estimator.estimate(options, self._sharders)
        perfs = [estimated[key].perf for key in keys]
        return torch.tensor(
            [
                [perf.fwd_compute + perf.prefetch_compute, perf.fwd_comms, perf.bwd_comms, perf.bwd_compute]
                for perf in perfs
            ],
            dtype=torch.float64,
        ).reshape(-1, 4)

    def _option(self, table: int, kind: str, shard: Shard, share: float | None) -> ShardingOption:
        """One shard as what TorchRec's estimator is given."""
        name = self._names[table]
        kernel = "fused" if share is None else "fused_uvm_caching"
        return ShardingOption(
            name=name,
            tensor=self._module.embedding_bags[name].weight,
            module=("", self._module),
            input_lengths=[self._pooling[table]],
            batch_size=self._batch_size,
            sharding_type=kind,
            partition_by=get_partition_by_type(kind),
            compute_kernel="dense" if kind == "data_parallel" else kernel,
            shards=[shard],
            cache_params=None if share is None else CacheParams(load_factor=share),
            is_pooled=True,
        )
