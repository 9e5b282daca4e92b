"""Whether a plan file is for the ranks that are running, and its shards cover its tables."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torchrec.distributed.comm import get_local_size

from dreamshard.sharding import ON_ONE_HOST

if TYPE_CHECKING:
    from dreamshard.torchrec.plan_file import PlanFile

logger = logging.getLogger(__name__)


def check_ranks(path: str, file: "PlanFile") -> None:
    """Compare the file's ranks, hosts and devices with those of the default process group; without one, warn.

    Raises:
        ValueError: they differ.
    """
    if not dist.is_initialized():
        logger.warning(
            "there is no process group yet, so %s was not compared with the ranks that run it (it is for %s ranks, %s per "
            "host, on %s); call torch.distributed.init_process_group() before load_plan",
            path,
            file.world_size,
            file.ranks_per_host,
            file.device_type,
        )
        return
    ranks = dist.get_world_size()
    if file.world_size not in (None, ranks):
        raise ValueError(
            f"{path} is a plan for {file.world_size} ranks, but {ranks} are running, so some shards would have no rank or "
            f"some ranks no shard; start {file.world_size} ranks, or plan again with --devices {ranks}"
        )
    backend = dist.get_backend()
    runs_on = "cuda" if backend == "nccl" else None if torch.cuda.is_available() else "cpu"
    if None not in (file.device_type, runs_on) and file.device_type != runs_on:
        raise ValueError(
            f"{path} is a plan for {file.device_type} ranks, but these run {backend} on {runs_on}, so its shards would be on "
            f"devices that are not there; plan again with --device-type {runs_on}"
        )
    on_hosts = any(each.sharding_type in ON_ONE_HOST for module in file.plan.plan.values() for each in module.values())
    if file.ranks_per_host is not None and (on_hosts or file.device_type == "cuda"):
        per_host = get_local_size(ranks)
        if file.ranks_per_host != per_host:
            raise ValueError(
                f"{path} is a plan for hosts of {file.ranks_per_host} ranks, but TorchRec takes these to have {per_host} "
                "(LOCAL_WORLD_SIZE), so shards would be on other hosts and devices than planned; plan again with "
                f"--devices-per-host {per_host}, or start {file.ranks_per_host} ranks per host"
            )


def check_shards(path: str, file: "PlanFile") -> None:
    """Compare the sizes of a plan's shards with its tables.

    Raises:
        ValueError: the shards of a table do not have its rows and columns together.
    """
    sizes: Mapping[tuple[str, str], tuple[int, int]] = {
        (table.module_path, table.name): (table.rows, table.dim) for table in file.tables or ()
    }
    for (module, name), (rows, dim) in sizes.items():
        parameter = file.plan.plan[module].get(name) if module in file.plan.plan else None
        spec = parameter.sharding_spec if parameter is not None else None
        if not isinstance(spec, EnumerableShardingSpec):
            continue
        held = sum(shard.shard_sizes[0] * shard.shard_sizes[1] for shard in spec.shards)
        ends = [max(shard.shard_offsets[axis] + shard.shard_sizes[axis] for shard in spec.shards) for axis in (0, 1)]
        if held != rows * dim or ends != [rows, dim]:
            raise ValueError(
                f"{path} has shards of table {name!r} that hold {held} weights up to row {ends[0]} and column {ends[1]}, but "
                f"the table is {rows} x {dim}, so it was changed after it was written; write it again with `dreamshard place "
                "--format torchrec`"
            )
