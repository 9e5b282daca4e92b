"""`DreamShardPlanner` in place of TorchRec's `EmbeddingShardingPlanner`: one line changes in a trainer."""

import logging
import pickle
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch.distributed as dist
from torch import nn
from torchrec.distributed.comm import get_local_size, get_topology_domain_multiple
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.constants import BATCH_SIZE
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType, StorageReservation
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder, ShardingPlan, ShardingPlanner
from torchrec.distributed.utils import get_device_type

from dreamshard.constraints import UNCONSTRAINED, Constraints
from dreamshard.files.foreign import InputError
from dreamshard.formatting import gib
from dreamshard.legality import violation
from dreamshard.named_placers import named_placer
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError, Placer
from dreamshard.shards import Shards
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.torchrec.model_to_plan import ModelToPlan, model_to_plan
from dreamshard.torchrec.sharding_plans import placement_plan

logger = logging.getLogger(__name__)
_PERCENTAGE = 0.15  # of device memory that TorchRec's planner reserves where nobody says


class DreamShardPlanner(ShardingPlanner):  # type: ignore[misc]  # torchrec is untyped here
    """Plans by learned or published costs of the hardware.

    Args are those of `EmbeddingShardingPlanner` as far as they apply; others, such as proposers, are refused.

    Args:
        topology: as for TorchRec's planner; by default that of the default process group. Its memory is used, device by
            device; its bandwidths are not, since the placer knows the hardware.
        batch_size: samples per rank.
        costs: a placer, or the name of one (`named_placer`): a preset such as `a100`, a hardware file, a saved placer's
            folder, or `champion` or a version of the registry.
        storage_reservation: memory that is not for tables; by default TorchRec's heuristic with 15 %.
        constraints: TorchRec's own, by table name.
        placement_constraints: what TorchRec's have no words for: pinned tables, tables together or apart, devices that are
            left out, a further reserve.
        tables: statistics of lookups by table name, from sample batches; tables that it lacks are looked up by a Zipf law.
        budget_ms: work of the search, the same on any machine: see `SearchingPlacer`; None for the placer's own.
    """

    def __init__(
        self,
        topology: Topology | None = None,
        batch_size: int | None = None,
        *,
        costs: Placer | str | Path = "champion",
        storage_reservation: StorageReservation | None = None,
        constraints: Mapping[str, ParameterConstraints] | None = None,
        placement_constraints: Constraints = UNCONSTRAINED,
        tables: Tables | None = None,
        budget_ms: float | None = None,
    ) -> None:
        self.topology = topology or _topology()
        self.batch_size = batch_size or BATCH_SIZE
        self.costs = costs
        self.storage_reservation = storage_reservation or _reservation()
        self.constraints = dict(constraints or {})
        self.placement_constraints = placement_constraints
        self.tables = tables
        self.budget_ms = budget_ms

    @cached_property
    def placer(self) -> Placer:
        """Loaded where it is first used: on the first rank only."""
        return named_placer(self.costs) if isinstance(self.costs, str | Path) else self.costs

    def plan(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]) -> ShardingPlan:
        """TorchRec's plan for all tables of `module` that `sharders` shard; the same input gives the same plan.

        Raises:
            PlannerError: no plan fits memory and constraints.
            ValueError: a constraint cannot be honoured.
        """
        start = time.perf_counter()
        model = model_to_plan(
            module,
            sharders,
            constraints=self.constraints,
            compute_device=self.topology.compute_device,
            batch_size=self.batch_size,
            measured=self.tables,
        )
        if model is None:
            return ShardingPlan({})
        try:
            task = self._task(module, sharders, model)
            placement = _named_as_allowed(task, self.placer.place(task, self.budget_ms))
        except NoPlacementError as error:
            raise PlannerError(str(error), PlannerErrorType.STRICT_CONSTRAINTS) from error
        self._check(task, placement)
        for note in model.notes:
            logger.info("dreamshard: %s", note)
        ways = Counter(sharding.sharding_type for sharding in placement.tables)
        logger.info(
            "dreamshard: %d tables on %d ranks by %s in %.0f ms: %s",
            len(model.planned),
            task.num_devices,
            self.placer.name,
            1000 * (time.perf_counter() - start),
            ", ".join(f"{count} {way}" for way, count in sorted(ways.items())),
        )
        return placement_plan(
            placement,
            model.planned,
            device_type=self.topology.compute_device,
            ranks_per_host=self.topology.local_world_size,
            fields=model.inputs.fields,
        )

    def collective_plan(
        self,
        module: nn.Module,
        sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> ShardingPlan:
        """`plan` on the first rank of `pg`, for all its ranks; an error is raised on all of them.

        Args:
            pg: the default process group if None.

        Raises:
            PlannerError: as `plan`.
            ValueError: as `plan`, or there is no process group.
        """
        pg = pg or (dist.GroupMember.WORLD if dist.is_initialized() else None)
        if pg is None:
            raise ValueError(
                "there is no process group, so ranks cannot agree on a plan; call torch.distributed.init_process_group() "
                "first, or plan() for a single process"
            )
        outcome: list[ShardingPlan | Exception | None] = [None]
        if dist.get_rank(pg) == 0:
            try:
                self._check_ranks(dist.get_world_size(pg))
                plan = self.plan(module, list(sharders or get_default_sharders()))
                if dist.get_world_size(pg) > 1:
                    _check_sendable(plan)
                outcome = [plan]
            except Exception as error:  # noqa: BLE001  # raised below, on all ranks, which would wait for ever otherwise
                outcome = [_sendable(error)]
        if dist.get_world_size(pg) > 1:
            dist.broadcast_object_list(outcome, src=dist.get_global_rank(pg, 0), group=pg)
        (result,) = outcome
        if isinstance(result, Exception):
            raise result
        return result

    def _check_ranks(self, num_ranks: int) -> None:
        """Refuse a topology of another number of ranks than the process group has."""
        if self.topology.world_size != num_ranks:
            raise ValueError(
                f"the topology has {self.topology.world_size} ranks, but the process group {num_ranks}, so some shards would "
                "have no rank or some ranks no shard; give the topology of this process group, or none"
            )

    def _task(
        self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]], model: ModelToPlan
    ) -> PlacementTask:
        """The tables, with the memory that is for them on each device.

        Raises:
            PlannerError: no memory is left, or too little for any placement.
            NoPlacementError: constraints contradict one another.
            ValueError: constraints name what does not exist.
        """
        reserved = self.storage_reservation.reserve(
            topology=self.topology,
            batch_size=self.batch_size,
            module=module,
            sharders=list(sharders),
            constraints=self.constraints,
        )
        on_gpu = self.topology.compute_device != "cpu"
        vectors = model.vector_bytes(self.batch_size)
        room = [(device.storage.hbm if on_gpu else device.storage.ddr) - vectors for device in reserved.devices]
        whole = [device.storage.hbm if on_gpu else device.storage.ddr for device in self.topology.devices]
        logger.info(
            "dreamshard: %s of the %s of a device are for tables; reserved are %s by %s and %s for pooled vectors and their "
            "gradients",
            gib(max(0, min(room))),
            gib(min(whole)),
            gib(whole[0] - room[0] - vectors),
            type(self.storage_reservation).__name__,
            gib(vectors),
        )
        if min(room) <= 0:
            raise PlannerError(
                f"nothing of the {gib(min(whole))} of a device is left for tables after what is reserved; give devices more "
                "memory, lower batch_size, or give another storage_reservation",
                PlannerErrorType.INSUFFICIENT_STORAGE,
            )
        model.constraints(room, self.placement_constraints)  # a contradiction is no shortage of memory
        try:
            return model.task(
                room,
                batch_size=self.batch_size * self.topology.world_size,
                devices_per_host=self.topology.intra_group_size,
                further=self.placement_constraints,
            )
        except ValueError as error:
            raise PlannerError(str(error), PlannerErrorType.INSUFFICIENT_STORAGE) from error

    def _check(self, task: PlacementTask, placement: Placement) -> None:
        """Refuse a placement that violates constraints, or whose cached tables exceed the memory of hosts."""
        if broken := violation(task, placement):
            raise PlannerError(
                f"{self.placer.name} found no placement that respects all constraints: {broken}; relax them, or choose other "
                "costs",
                PlannerErrorType.STRICT_CONSTRAINTS,
            )
        shards = Shards.of(task, placement)
        in_host = shards.host_bytes.new_zeros(task.num_devices).index_add_(0, shards.device, shards.host_bytes)
        for device, needed in zip(self.topology.devices, in_host.tolist(), strict=True):
            if self.topology.compute_device != "cpu" and needed > device.storage.ddr:
                raise PlannerError(
                    f"the cached tables of rank {device.rank} need {gib(needed)} of host memory, but it has "
                    f"{gib(device.storage.ddr)}; give the topology more ddr_cap, or add ranks",
                    PlannerErrorType.INSUFFICIENT_STORAGE,
                )


def _check_sendable(plan: ShardingPlan) -> None:
    """Refuse a plan that cannot be sent to other ranks."""
    try:
        pickle.dumps(plan)
    except Exception as error:
        raise ValueError(
            f"the plan cannot be sent to the other ranks ({type(error).__name__}: {error}), since a field of constraints "
            "that it takes over cannot be pickled; give plain values there, such as a DataType for output_dtype"
        ) from error


def _sendable(error: Exception) -> Exception:
    """The error, or one of its text where its class might not exist or not be rebuilt on other ranks."""
    if type(error) in (PlannerError, ValueError, InputError):
        return error
    return RuntimeError(f"planning failed on the first rank: {type(error).__name__}: {error}").with_traceback(
        error.__traceback__
    )


def _named_as_allowed(task: PlacementTask, placement: Placement) -> Placement:
    """The same, whole tables that must be column-wise being so in one shard, as TorchRec's planner has them."""
    tables = tuple(
        replace(sharding, sharding_type="column_wise", columns=((0, dim),))
        if sharding.sharding_type == "table_wise"
        and "table_wise" not in (allowed := task.constraints.sharding_types_for(name))
        and "column_wise" in allowed
        else sharding
        for name, dim, sharding in zip(task.tables.names, task.tables.dim.tolist(), placement.tables, strict=True)
    )
    return replace(placement, tables=tables)


def _topology() -> Topology:
    if not dist.is_initialized():
        raise ValueError(
            "there is no process group, so the number of ranks is unknown; call torch.distributed.init_process_group() "
            "first, or give a topology"
        )
    return Topology(
        world_size=dist.get_world_size(),
        local_world_size=get_local_size(),
        compute_device=get_device_type(),
        pod_size=get_topology_domain_multiple(),
    )


def _reservation() -> StorageReservation:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # advice to users who choose it; it is what TorchRec chooses
        return HeuristicalStorageReservation(percentage=_PERCENTAGE)
