"""`DreamShardPlanner` in place of TorchRec's `EmbeddingShardingPlanner`: one line changes in a trainer."""

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torchrec.distributed.comm import get_local_size, get_topology_domain_multiple
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.constants import BATCH_SIZE
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType, StorageReservation
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan, ShardingPlanner
from torchrec.distributed.utils import get_device_type

from dreamshard.constraints import UNCONSTRAINED, Constraints
from dreamshard.files.text import gib, shown
from dreamshard.hardware.accelerator import PRESETS, hardware, is_hardware_file
from dreamshard.placement import SHARDING_TYPES, Placement
from dreamshard.placer import NoPlacementError, Placer
from dreamshard.search import RooflinePlacer
from dreamshard.shards import Shards, violation
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.torchrec.models import Sharders, discover
from dreamshard.torchrec.plans import sharding_plan
from dreamshard.torchrec.ways import check_given, narrowed, plan_fields
from dreamshard.training import load_placer
from dreamshard.workloads import ModelTable, ModelTables, model_tables

REGISTRIES = "dreamshard.placers"
"""Entry points that load a placer by the name of a version: a function from `str` to `Placer`."""

logger = logging.getLogger(__name__)
_VECTOR_BYTES = 4  # per column of a pooled vector: TorchRec's outputs are fp32
_WITH_GRADIENT = 2
_PERCENTAGE = 0.15  # of device memory that TorchRec's planner reserves by default


class DreamShardPlanner(ShardingPlanner):  # type: ignore[misc]  # torchrec is untyped here
    """Plans by learned or published costs of the hardware.

    Args:
        topology: as for TorchRec's planner; by default that of the default process group. Its memory is used, device by
            device; its bandwidths are not, since the placer knows the hardware.
        batch_size: samples per rank.
        costs: a placer, or the name of one (`named_placer`): a preset such as `a100`, a hardware file, a saved placer's
            folder, or `champion` or a version of the registry.
        storage_reservation: memory that is not for tables; by default TorchRec's heuristic with 15 %.
        constraints: TorchRec's own, by table name.
        placement_constraints: constraints that TorchRec lacks: pinned tables, tables together or apart, devices that are
            left out, a further reserve.
        tables: statistics of lookups by table name, from sample batches; tables that it lacks have their mean reuse.
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
        self.topology = topology or Topology(
            world_size=dist.get_world_size(),
            local_world_size=get_local_size(),
            compute_device=get_device_type(),
            pod_size=get_topology_domain_multiple(),
        )
        self.batch_size = batch_size or BATCH_SIZE
        self.costs = costs
        self.storage_reservation = storage_reservation or HeuristicalStorageReservation(_PERCENTAGE)
        self.constraints = dict(constraints or {})
        self.placement_constraints = placement_constraints
        self.tables = tables
        self.budget_ms = budget_ms

    @cached_property
    def placer(self) -> Placer:
        """Loaded at its first use: on the first rank only."""
        return named_placer(self.costs) if isinstance(self.costs, str | Path) else self.costs

    def plan(self, module: nn.Module, sharders: Sharders) -> ShardingPlan:
        """TorchRec's plan for all tables of `module` that `sharders` shard; the same input gives the same plan.

        Raises:
            PlannerError: no plan fits memory and constraints.
            ValueError: a constraint cannot be honoured.
        """
        start = time.perf_counter()
        model = self.model(module, sharders)
        if model is None:
            return ShardingPlan({})
        try:
            task = self.task(model, module, sharders)
            placement = self.placer.place(task, self.budget_ms)
        except NoPlacementError as error:
            raise PlannerError(str(error), PlannerErrorType.INSUFFICIENT_STORAGE) from error
        self._check(task, placement)
        logger.info(
            "dreamshard: %d tables on %d ranks by %s in %.0f ms: %s",
            len(model),
            task.num_devices,
            self.placer.name,
            1000 * (time.perf_counter() - start),
            dict(Counter(sharding.sharding_type for sharding in placement.tables)),
        )
        return sharding_plan(
            placement,
            model.details,
            device_type=self.topology.compute_device,
            ranks_per_host=self.topology.local_world_size,
            fields=[plan_fields(self.constraints.get(table.name)) for table in model.details],
        )

    def model(self, module: nn.Module, sharders: Sharders) -> ModelTables | None:
        """The tables of `module` that `sharders` shard, with known statistics of their lookups; None if there are none."""
        details, notes = discover(module, sharders)
        if not details:
            return None
        check_given(self.constraints, details, self.topology.compute_device, self.batch_size)
        measured, factors = set(self.tables.names) if self.tables else set(), {}
        for t, table in enumerate(details):
            own = self.constraints.get(table.name, ParameterConstraints())
            poolings = _per_feature(own.num_poolings or [1.0], table)
            if own.num_poolings:
                details[t] = replace(table, num_poolings=sum(poolings))
            if table.name in self.constraints and not measured & {table.name, table.path}:
                lookups = zip(_per_feature(own.pooling_factors, table), poolings, strict=True)
                factors[table.path] = sum(factor * count for factor, count in lookups)
        model = model_tables(details, pooling_factors=factors, defaults=self.tables, notes=notes)
        rows = dict(zip(model.tables.names, model.tables.rows.tolist(), strict=True))
        if unknown := sorted((self.placement_constraints.tables_named() | measured) - rows.keys()):
            raise ValueError(
                f"placement_constraints or tables name {shown(unknown)}, which are no tables of this model; correct the "
                "names (a table whose name occurs in several modules is called module.table)"
            )
        for name, count in zip(self.tables.names, self.tables.rows.tolist(), strict=True) if self.tables else ():
            if count != rows[name]:
                raise ValueError(
                    f"table {name!r} has {rows[name]} rows in the model and {count} in the statistics of lookups; measure "
                    "them again"
                )
        return model

    def task(self, model: ModelTables, module: nn.Module, sharders: Sharders) -> PlacementTask:
        """The task of placing the tables, with the memory that is for them on each device."""
        own = replace(self.placement_constraints, caching=True)
        if own.sharding_types == UNCONSTRAINED.sharding_types:
            own = replace(own, sharding_types=SHARDING_TYPES)
        device = self.topology.compute_device
        own, notes = narrowed(own, model.by_name, device_type=device, sharders=sharders, given=self.constraints)
        for note in (*model.notes, *notes):
            logger.info("dreamshard: %s", note)
        room = self._room(model, module, sharders)
        unequal = {rank: own_room for rank, own_room in enumerate(room) if own_room != max(room)}
        own = replace(own, memory_bytes_of=unequal | dict(own.memory_bytes_of))
        try:
            return model.task(
                len(room),
                max(room),
                batch_size=self.batch_size * self.topology.world_size,
                devices_per_host=self.topology.intra_group_size,
                constraints=own,
            )
        except ValueError as error:
            raise PlannerError(str(error), PlannerErrorType.STRICT_CONSTRAINTS) from error

    def _room(self, model: ModelTables, module: nn.Module, sharders: Sharders) -> list[int]:
        """Bytes for tables on each device: without the reservation, and each rank's pooled vectors and their gradients."""
        reserved = self.storage_reservation.reserve(
            topology=self.topology,
            batch_size=self.batch_size,
            module=module,
            sharders=list(sharders),
            constraints=self.constraints,
        )
        vectors = self.batch_size * int(model.tables.sent_dim.sum()) * _VECTOR_BYTES * _WITH_GRADIENT
        kind = "ddr" if self.topology.compute_device == "cpu" else "hbm"
        room = [max(getattr(device.storage, kind) - vectors, 0) for device in reserved.devices]
        logger.info(
            "dreamshard: %s of a device are for tables, besides the reserve of %s and %s of pooled vectors with gradients",
            gib(min(room)),
            type(self.storage_reservation).__name__,
            gib(vectors),
        )
        return room

    def collective_plan(
        self, module: nn.Module, sharders: Sharders | None = None, pg: dist.ProcessGroup | None = None
    ) -> ShardingPlan:
        """`plan` on the first rank of `pg` (None: the default group), for all its ranks; errors are raised on all."""
        outcome: list[Any] = [None]
        if dist.get_rank(pg) == 0:
            try:
                ranks, running = self.topology.world_size, dist.get_world_size(pg)
                if ranks != running:
                    raise ValueError(
                        f"the topology has {ranks} ranks, but the process group {running}; give its own, or none"
                    )
                outcome = [self.plan(module, list(sharders or get_default_sharders()))]
            except Exception as error:  # noqa: BLE001  # the other ranks would wait for ever
                is_own = isinstance(error, PlannerError | ValueError)
                outcome = [error if is_own else RuntimeError(f"planning failed: {type(error).__name__}: {error}")]
        dist.broadcast_object_list(outcome, group=pg, group_src=0)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def _check(self, task: PlacementTask, placement: Placement) -> None:
        """Refuse a placement that violates constraints, or whose cached tables exceed the memory of hosts."""
        if broken := violation(task, placement):
            raise PlannerError(
                f"{self.placer.name} found no placement that respects all constraints: {broken}; relax them, or choose other "
                "costs",
                PlannerErrorType.STRICT_CONSTRAINTS,
            )
        shards = Shards.of(task, placement)
        for device, needed in zip(self.topology.devices, shards.per_device(shards.host_bytes).tolist(), strict=True):
            if needed > device.storage.ddr:
                raise PlannerError(
                    f"the cached tables of rank {device.rank} need {gib(needed)} of host memory, but it has "
                    f"{gib(device.storage.ddr)}; give the topology more ddr_cap, or add ranks",
                    PlannerErrorType.INSUFFICIENT_STORAGE,
                )


def _per_feature(values: list[float], table: ModelTable) -> list[float]:
    """A value for each feature of a table, of one for all or one for each."""
    return values * len(table.features) if len(values) == 1 else values


def named_placer(name: str | Path) -> Placer:
    """The placer of a name.

    Args:
        name: a preset (`a100`) or a hardware file (`cluster.yaml`), whose figures it places by; a folder that
            `training.save_placer` wrote; or a version in the registry (`champion`, `3`, or a URI of MLflow's).

    Raises:
        ValueError: there is no such placer.
    """
    text = str(name)
    if text.lower() in PRESETS or is_hardware_file(text):
        return RooflinePlacer(hardware(text))
    if Path(text).is_dir():
        return load_placer(Path(text))
    try:
        (registry,) = entry_points(group=REGISTRIES)
        placer: Placer = registry.load()(text)
        return placer
    except (ValueError, ImportError) as error:
        presets = ", ".join(sorted(PRESETS))
        raise ValueError(f"{text!r} is no preset ({presets}), hardware file or folder; {error}") from error
