"""`DreamShardPlanner` in place of TorchRec's `EmbeddingShardingPlanner`: one line changes in a trainer.

`ShardCosts` gives dreamshard's costs and bytes as an estimator of TorchRec's planner, so that its proposers and stats table
use them. Not through `EmbeddingPerfEstimatorFactory`: its context of a shard says neither which table that is of nor how
often rows are looked up again.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.comm import get_local_size, get_topology_group_world_size
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.constants import BATCH_SIZE, POOLING_FACTOR
from torchrec.distributed.planner.planners import to_sharding_plan
from torchrec.distributed.planner.stats import EmbeddingStats
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import (
    Perf,
    PlannerError,
    PlannerErrorType,
    ShardEstimator,
    ShardingOption,
    Stats,
    Storage,
    StorageReservation,
)
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan, ShardingPlanner
from torchrec.distributed.utils import get_device_type
from torchrec.modules.embedding_configs import DATA_TYPE_NUM_BITS
from torchrec.types import DataType

from dreamshard.constraints import UNCONSTRAINED, Constraints
from dreamshard.files import gib, shown
from dreamshard.hardware.accelerator import preset_of
from dreamshard.planning import legal_placement, placer_of
from dreamshard.search import RooflinePlacer, SearchingPlacer
from dreamshard.tables import SHARDING_TYPES, ModelTable, Placement, Tables
from dreamshard.tasks import Activations, NoPlacementError, PlacementTask, Placer, Shards
from dreamshard.testbeds.device import machine_memory_bytes
from dreamshard.torchrec.models import Sharders, discover
from dreamshard.torchrec.plans import CACHED, check_given, narrowed, per_feature, sharding_options, shards_of
from dreamshard.workloads import ModelTables, model_tables

logger = logging.getLogger(__name__)
Pipeline = Literal["none", "base", "sparse_dist", "prefetch"]
_INPUTS: dict[Pipeline, int] = {"none": 1, "base": 1, "sparse_dist": 2, "prefetch": 3}
"""How many batches of a rank's inputs are in its memory, as TorchRec's storage estimator counts them."""
_INDEX_BYTES = 8  # of a lookup: int64


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
        if model.prices_caches:
            kernels.append(CACHED)
        known = []
        for option in sharding_options:
            is_known = option.compute_kernel in kernels
            known += [(option, self.number[option.path, option.name])] * is_known
            nothing, perf = Storage(hbm=0, ddr=0), Perf(*[0.0 if is_known else math.inf] * 4)
            for shard in option.shards:
                shard.storage, shard.perf = nothing, perf
        held, shards = shards_of(model.task, known, model.devices_per_host)
        loads = model.loads(shards)
        # most blocks of a table's rows are alike, so they have the same weighted sum of loads
        _, some, same = np.unique(
            loads @ np.sqrt(1 + np.arange(loads.shape[1])), return_index=True, return_inverse=True
        )
        others = (0, 0), (0, shards.num_devices - 1), (0, 0)  # devices, which are empty
        loads = loads[some]
        parts = np.array_split(loads[:, None], 1 + loads.size * shards.num_devices // 2**22)  # each is some 32 MiB
        phases_ms = torch.cat([model.phases_ms(np.pad(part, others))[:, 0] for part in parts]).float()[same]
        if all(shard.rank is not None for shard in held):
            together_ms = model.phases_ms(model.sums(shards)[None])[0]
            phases_ms *= (together_ms / shards.per_device(phases_ms).clamp(min=1e-12))[shards.device]
        for shard, forward, sent, returned, backward in zip(held, *phases_ms.T.tolist(), strict=True):
            shard.perf = Perf(forward, sent, backward, returned)


@dataclass(eq=False)
class DreamShardPlanner(ShardingPlanner):  # type: ignore[misc]  # torchrec is untyped here
    """Plans by learned or published costs of the hardware.

    Args:
        topology: as for TorchRec's planner; by default of the default process group, with the memory of this rank's device
            and its part of the host's. Its memory is used, device by device; its bandwidths are not, since the placer knows
            the hardware. For a `DMPCollection`, give one of `sharding_group_size` ranks.
        batch_size: samples per rank.
        costs: a placer, or the name of one, as for `load_placer`.
        storage_reservation: memory that is not for tables; by default TorchRec's heuristic with 15 %.
        stats: print the plan; by default TorchRec's table, if the placer predicts costs.
        constraints: TorchRec's own, by table name.
        debug: whether `stats` print every table; by default if there are at most 1,000, since more take TorchRec longer to
            print than all devices.
        callbacks: change the selected options before they become the plan.
        timeout_seconds: of planning, after which the best plan so far is taken, with time left to write its shards; `stats`
            come on top, 1 s for 100,000 shards. A plan that takes less does not depend on it.
        placement_constraints: constraints that TorchRec lacks: pinned tables, tables together or apart, devices that are
            left out, a further reserve.
        strict: refuse costs of other hardware, devices, hosts, precisions, optimizer or batch than the plan's. Otherwise
            that is a warning, and published figures of this machine's GPU replace such a `champion`.
        tables: statistics of lookups by table name, from sample batches; tables that it lacks have their mean reuse.
        pipeline: of training; decides how many batches of inputs are in memory at once.

    >>> planner = ds.DreamShardPlanner(Topology(2, "cuda"), batch_size=512, costs="a100", stats=[])
    >>> sorted(planner.plan(model, get_default_sharders()).plan[""])
    ['item', 'user']
    """

    topology: Topology = None
    batch_size: int = None  # type: ignore[assignment]  # set below, as the others of None
    _: KW_ONLY
    costs: Placer | str | Path = "champion"
    storage_reservation: StorageReservation = None
    stats: Sequence[Stats] = None  # type: ignore[assignment]
    constraints: Mapping[str, ParameterConstraints] = None  # type: ignore[assignment]
    debug: bool | None = None
    callbacks: Sequence[Callable[[list[ShardingOption]], list[ShardingOption]]] = ()
    timeout_seconds: float | None = None
    placement_constraints: Constraints = UNCONSTRAINED
    strict: bool = False
    tables: Tables | None = None
    pipeline: Pipeline = "none"

    def __post_init__(self) -> None:
        self.topology = self.topology or _own_topology()
        self.batch_size = self.batch_size or BATCH_SIZE
        self.storage_reservation = self.storage_reservation or HeuristicalStorageReservation(0.15)  # as TorchRec's
        self.stats = [EmbeddingStats()] if self.stats is None else self.stats
        self.constraints = dict(self.constraints or {})

    @cached_property
    def placer(self) -> Placer:
        """Loaded at its first use: on the first rank only."""
        return placer_of(self.costs)

    def plan(self, module: nn.Module, sharders: Sharders) -> ShardingPlan:
        """TorchRec's plan for all tables of `module` that `sharders` shard; the same input gives the same plan.

        Raises:
            PlannerError: no plan fits memory and constraints.
            ValueError: a constraint cannot be honoured.
        """
        start, model = time.perf_counter(), self.model(module, sharders)
        if model is None:
            return ShardingPlan({})
        try:
            task = self.task(model, module, sharders)
            placer = self._placer_of(task)
            if self.timeout_seconds and isinstance(placer, SearchingPlacer):
                spent_s = time.perf_counter() - start  # what follows takes longer the more ranks have copies
                placer = replace(placer, timeout_s=self.timeout_seconds - (2 + task.num_devices / 16) * spent_s)
            placement = legal_placement(task, placer)
        except NoPlacementError as error:
            kind = PlannerErrorType.STRICT_CONSTRAINTS if error.is_strict else PlannerErrorType.INSUFFICIENT_STORAGE
            raise PlannerError(str(error), kind) from error
        self._log_memory(self._checked(task, placement, model.details))
        options = sharding_options(placement, model.details, module, self.constraints, self.batch_size)
        for callback in self.callbacks:
            options = callback(options)
        plan, seconds = to_sharding_plan(options, self.topology), time.perf_counter() - start
        logger.info("dreamshard: %d tables by %s in %.0f ms", len(model), placer.name, 1000 * seconds)
        if self.stats and isinstance(placer, SearchingPlacer):
            ShardCosts(task, model.details, placer).estimate(options)
            for stats in self.stats:
                stats.log(
                    sharding_plan=plan,
                    topology=self.topology,
                    batch_size=self.batch_size,
                    storage_reservation=self.storage_reservation,
                    num_proposals=1,
                    num_plans=1,
                    run_time=seconds,
                    best_plan=options,
                    constraints=self.constraints,
                    sharders=sharders,
                    debug=len(model) <= 1000 if self.debug is None else self.debug,
                )
        return plan

    def _placer_of(self, task: PlacementTask) -> Placer:
        """The placer; figures of this machine's GPU in place of a champion whose costs are of something else.

        Raises:
            ValueError: the costs are of something else, and the planner is strict.
        """
        placer, has_gpu = self.placer, self.topology.compute_device == "cuda" and torch.cuda.is_available()
        if not isinstance(placer, SearchingPlacer):
            return placer
        spec = preset_of(torch.cuda.get_device_name()) if has_gpu else None
        _, warning = placer.differences(task, spec.name if spec else None)
        if not warning:
            return placer
        if self.strict:
            raise ValueError(f"costs={self.costs!r}: {warning}")
        if self.costs == "champion" and spec is not None:
            warning, placer = f"{warning}. Until then {spec.name}'s published figures place", RooflinePlacer(spec)
        logger.warning("dreamshard: %s", warning)
        return placer

    def estimator(self, module: nn.Module, sharders: Sharders) -> ShardCosts:
        """The same costs for TorchRec's own planner: the estimator of its `EmbeddingEnumerator`."""
        model = self.model(module, sharders)
        if model is not None:
            task = self.task(model, module, sharders)
            if isinstance(placer := self._placer_of(task), SearchingPlacer):
                return ShardCosts(task, model.details, placer)
        raise ValueError(f"the model has no tables, or {self.placer.name} predicts no costs; give others")

    def model(self, module: nn.Module, sharders: Sharders) -> ModelTables | None:
        """The tables of `module` that `sharders` shard, with known statistics of their lookups; None if there are none."""
        details, notes = discover(module, sharders)
        if not details:
            return None
        check_given(self.constraints, details, self.topology.compute_device, self.batch_size)
        known = {name: rows for name, rows, _ in self.tables.sizes} if self.tables else {}
        factors = {}
        for t, table in enumerate(details):
            limits = self.constraints.get(table.name, ParameterConstraints())
            poolings = per_feature(limits.num_poolings or [1.0], table)
            if limits.num_poolings:
                details[t] = replace(table, num_poolings=sum(poolings))
            is_given = limits.num_poolings or limits.pooling_factors != [POOLING_FACTOR]
            if is_given and not known.keys() & {table.name, table.path}:
                factors[table.path] = float(np.dot(per_feature(limits.pooling_factors, table), poolings))
        model = model_tables(details, pooling_factors=factors, defaults=self.tables, notes=notes)
        if unknown := sorted((self.placement_constraints.tables_named() | known.keys()) - model.by_name.keys()):
            raise ValueError(
                f"placement_constraints or tables name {shown(unknown)}, which are no tables of this model; correct the "
                "names (module.table if several modules have the name)"
            )
        for name, rows in known.items():
            if rows != (own_rows := model.by_name[name].rows):
                raise ValueError(
                    f"table {name!r} has {own_rows} rows in the model and {rows} in the statistics of lookups; measure "
                    "them again"
                )
        return model

    def task(self, model: ModelTables, module: nn.Module, sharders: Sharders) -> PlacementTask:
        """The task of placing the tables, with the memory that is for them on each device."""
        limits = self.placement_constraints
        types = limits.sharding_types or SHARDING_TYPES
        limits, notes = narrowed(
            replace(limits, sharding_types=types, caching=limits.caching is not False),
            model.by_name,
            device_type=self.topology.compute_device,
            sharders=sharders,
            given=self.constraints,
        )
        for note in (*model.model_notes, *notes):
            logger.info("dreamshard: %s", note)
        for note in model.lookup_notes:
            logger.warning("dreamshard: %s", note)
        free = self._sizes(
            self.storage_reservation.reserve(self.topology, self.batch_size, module, list(sharders), self.constraints)
        )
        unequal = {rank: size for rank, size in enumerate(free) if size != max(free)}
        limits = replace(limits, memory_bytes_of=unequal | dict(limits.memory_bytes_of))
        try:
            return model.task(
                len(free),
                max(free),
                batch_size=self.batch_size * self.topology.world_size,
                devices_per_host=self.topology.intra_group_size,
                constraints=limits,
                activations=self._activations(model, sharders),
            )
        except ValueError as error:
            raise PlannerError(str(error), PlannerErrorType.STRICT_CONSTRAINTS) from error

    def _activations(self, model: ModelTables, sharders: Sharders) -> Activations:
        """Memory of a step besides tables.

        A device makes its vectors for the whole batch in the forward pass, and gets their gradients in the backward pass,
        once the vectors are gone; it has the vectors of its own samples together with their gradients. A quantised
        collective has encoded copies of both besides.
        """
        types = [self.constraints.get(table.name, ParameterConstraints()).output_dtype for table in model.details]
        vector_bytes = max(DATA_TYPE_NUM_BITS[kind or DataType.FP32] for kind in types) // 8
        pairs = [pair for one in sharders for pair in (getattr(one, "qcomm_codecs_registry", None) or {}).values()]
        coded = [codec.quantized_dtype for pair in pairs for codec in (pair.forward, pair.backward)]
        coded_bytes = max((kind.itemsize for kind in coded if kind), default=0)
        return Activations(
            batch_size=self.batch_size * self.topology.world_size,
            lookup_bytes=_INDEX_BYTES * _INPUTS[self.pipeline],
            cached_lookup_bytes=_INDEX_BYTES * 7 * (self.pipeline == "prefetch"),  # further batches, as TorchRec counts
            sent_bytes=vector_bytes + coded_bytes,
            received_bytes=2 * vector_bytes + coded_bytes,
        )

    def _sizes(self, topology: Topology) -> list[int]:
        """Memory of each device that holds tables."""
        kind = "ddr" if self.topology.compute_device == "cpu" else "hbm"
        return [max(getattr(device.storage, kind), 0) for device in topology.devices]

    def _log_memory(self, shards: Shards) -> None:
        """Log the bytes that each rank holds, and its reserve."""
        received, tables = shards.task.received_bytes, shards.device_bytes - shards.activation_bytes
        held = shards.per_device(torch.stack([tables, shards.activation_bytes], dim=1)).tolist()
        reserved = torch.tensor(self._sizes(self.topology)) - shards.task.capacity_bytes - received
        for rank, sizes in enumerate(held):
            logger.info(
                "rank %d: %s of weights, optimizer state, gradients and caches, %s of inputs and vectors of the whole "
                "batch, %s of vectors of its own samples; %s are reserved",
                rank,
                *(gib(size) for size in (*sizes, received, int(reserved[rank]))),
            )

    def collective_plan(
        self, module: nn.Module, sharders: Sharders | None = None, pg: dist.ProcessGroup | None = None
    ) -> ShardingPlan:
        """`plan` on the first rank of `pg` (None: the default group), for all its ranks; errors are raised on all."""
        outcome: list[Any] = [None]
        if dist.get_rank(pg) == 0:
            try:
                ranks, running = self.topology.world_size, dist.get_world_size(pg)
                if running % ranks:
                    raise ValueError(
                        f"the topology has {ranks} ranks, but the process group {running}; give its own, or one of a group"
                    )
                outcome = [self.plan(module, list(sharders or get_default_sharders()))]
            except Exception as error:  # noqa: BLE001  # the other ranks would wait for ever
                is_own = isinstance(error, PlannerError | ValueError)
                outcome = [error if is_own else RuntimeError(f"planning failed: {type(error).__name__}: {error}")]
        dist.broadcast_object_list(outcome, group=pg, group_src=0)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def _checked(self, task: PlacementTask, placement: Placement, tables: Sequence[ModelTable]) -> Shards:
        """The shards, with what cached tables need; refuses what exceeds the memory of hosts."""
        shards = Shards.of(task, placement)
        count = int(shards.per_device(torch.tensor([len(table.features) for table in tables])[shards.table]).max())
        samples = task.activations.batch_size
        if samples >> (32 - count.bit_length()):  # an operator numbers both in 32 bits together (FBGEMM 6236)
            logger.warning("dreamshard: fbgemm may lack bits for %d samples of %d features; use fewer", samples, count)
        if self.pipeline != "prefetch" and shards.in_host.any():
            logger.warning("dreamshard: cached tables need PrefetchTrainPipelineSparseDist and pipeline='prefetch'")
        for device, needed in zip(self.topology.devices, shards.per_device(shards.host_bytes).tolist(), strict=True):
            if needed > device.storage.ddr:
                raise PlannerError(
                    f"the cached tables of rank {device.rank} need {gib(needed)} of host memory, but it has "
                    f"{gib(device.storage.ddr)}; give the topology more ddr_cap, or add ranks",
                    PlannerErrorType.INSUFFICIENT_STORAGE,
                )
        return shards


def _own_topology() -> Topology:
    """Of the default process group: each rank has the memory of its device, and its part of the host's.

    NVLink domains are those of TorchRec's process groups; its own planner may assume others (torchrec 4274).
    """
    device, ranks = get_device_type(), get_local_size()
    return Topology(
        dist.get_world_size(),
        device,
        hbm_cap=torch.cuda.get_device_properties().total_memory if device == "cuda" else None,
        ddr_cap=machine_memory_bytes() // ranks,
        local_world_size=ranks,
        pod_size=get_topology_group_world_size() // ranks,
    )
