"""A model and its sharders as a placement task."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface

from dreamshard.constraints import Constraints
from dreamshard.model_tables import ModelTable, ModelTables, feature_notes, shown
from dreamshard.placer import NoPlacementError
from dreamshard.tables import BYTES_PER_ELEMENT_STATE, BYTES_PER_ROW_STATE, Optimizer, Tables
from dreamshard.tasks import PlacementTask
from dreamshard.torchrec import optimizers
from dreamshard.torchrec.configs import table_of
from dreamshard.torchrec.parameter_constraints import PlanningInputs, planning_inputs, with_further
from dreamshard.torchrec.planned_tables import PlannedTable, ShardableTable, shardable_tables
from dreamshard.torchrec.ways import check_copies
from dreamshard.workloads import ListedTable, fill_missing_columns

_VECTOR_BYTES = 4  # per column of a pooled vector: TorchRec's outputs are fp32
_WITH_GRADIENT = 2


@dataclass(frozen=True)
class ModelToPlan:
    """The tables of a model that are to be sharded; all sequences are in the order of `planned`.

    Attributes:
        planned: as TorchRec's plan names them.
        model: with the tables as a task has them.
        inputs: what TorchRec's constraints mean.
        notes: what was assumed, for people.
    """

    planned: tuple[PlannedTable, ...]
    model: ModelTables
    inputs: PlanningInputs
    notes: tuple[str, ...]

    def vector_bytes(self, batch_size: int) -> int:
        """Device memory for a rank's pooled vectors of all tables, and their gradients; sequences are not pooled."""
        dims = [
            detail.dim * (factor if detail.pooling == "none" else len(detail.features))
            for detail, factor in zip(self.model.details, self.inputs.pooling_factors, strict=True)
        ]
        return round(batch_size * sum(dims)) * _VECTOR_BYTES * _WITH_GRADIENT

    def constraints(self, memory_bytes: Sequence[int], further: Constraints) -> Constraints:
        """What the placement must respect: TorchRec's constraints and dreamshard's own.

        Args:
            memory_bytes: `D`, room for tables on each device.
            further: dreamshard's own.

        Raises:
            NoPlacementError: they contradict one another.
            ValueError: they name what does not exist, or leave a table no way to be sharded.
        """
        names = self.model.tables.names
        constraints = with_further(self.inputs.constraints, further, names)
        most = max(memory_bytes)
        unequal = {rank: room for rank, room in enumerate(memory_bytes) if room != most}
        constraints = replace(constraints, memory_bytes_of=unequal | dict(further.memory_bytes_of))
        if reason := constraints.contradiction(names, len(memory_bytes)):
            raise NoPlacementError(
                f"the constraints cannot be met: {reason}, so no placement is legal; change one of them"
            )
        return constraints

    def task(
        self, memory_bytes: Sequence[int], *, batch_size: int, devices_per_host: int, further: Constraints
    ) -> PlacementTask:
        """The task of placing them.

        Args:
            memory_bytes: `D`, room for tables on each device.
            batch_size: samples of all ranks.
            devices_per_host: ranks that share a host.
            further: constraints beside TorchRec's.

        Raises:
            ValueError: no placement is legal.
        """
        most = max(memory_bytes)
        constraints = self.constraints(memory_bytes, further)
        optimizer = _largest_state(self.model.details)
        check_copies(self.model, constraints, optimizer, most - constraints.reserve_bytes)
        return self.model.task(
            len(memory_bytes),
            most,
            optimizer=optimizer,
            batch_size=batch_size,
            devices_per_host=devices_per_host,
            constraints=constraints,
        )


def model_to_plan(
    module: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]],
    *,
    constraints: Mapping[str, ParameterConstraints],
    compute_device: str,
    batch_size: int,
    measured: Tables | None = None,
) -> ModelToPlan | None:
    """The tables of `module` that `sharders` shard, and how they may be sharded; None if there are none.

    Args:
        constraints: by TorchRec's name of a table.
        compute_device: of the ranks.
        batch_size: samples per rank.
        measured: statistics of lookups by name; tables that it lacks are looked up by a Zipf law.

    Raises:
        ValueError: a constraint or a table cannot be planned with.
    """
    found = shardable_tables(module, sharders)
    if not found:
        return None
    details = [_detail(each) for each in found]
    names = _names([each.table for each in found])
    inputs = planning_inputs(found, details, names, constraints, compute_device=compute_device, batch_size=batch_size)
    _refuse_two_counts(found, names, constraints, measured)
    tables, notes = _with_lookups(names, details, inputs.pooling_factors, measured)
    notes += [*feature_notes(names, details), *_optimizer_notes(details)]
    model = ModelTables(tables, tuple(details))
    return ModelToPlan(tuple(each.table for each in found), model, inputs, (*inputs.notes, *notes))


def _names(tables: Sequence[PlannedTable]) -> list[str]:
    """Names in the task: with the module's path in front where several modules have a table of that name."""
    own = [table.name for table in tables]
    return [table.path if own.count(table.name) > 1 else table.name for table in tables]


def _detail(found: ShardableTable) -> ModelTable:
    """The table as the model has it.

    Raises:
        ValueError: its type of weights or its optimizer cannot be planned with.
    """
    table, config = found.table, found.config
    if config is None:
        raise ValueError(
            f"table {table.path!r} is in a {type(found.module).__name__}, which does not give the configs of its tables, so "
            "it cannot be planned; leave its sharder out, or shard it by TorchRec's own planner"
        )
    own, _ = optimizers.of_parameter(found.parameter, table.path)
    general, _ = optimizers.of_fused_params(getattr(found.sharder, "fused_params", None))
    module: Any = found.module  # torchrec is untyped here
    weighted = isinstance(module, EmbeddingBagCollectionInterface) and bool(module.is_weighted())
    return table_of(config, module_path=table.module_path, is_weighted=weighted, optimizer=own or general)


def _refuse_two_counts(
    found: Sequence[ShardableTable],
    names: Sequence[str],
    constraints: Mapping[str, ParameterConstraints],
    measured: Tables | None,
) -> None:
    """Raise where both the statistics and the constraints give a table's pooling factors, or statistics are of no table."""
    if measured is None:
        return
    if unknown := sorted(set(measured.names) - set(names)):
        raise ValueError(
            f"the statistics of lookups (tables) are also of {shown(unknown)}, which are no tables of this model, so they "
            "would be ignored; leave them out, or correct the names"
        )
    default = ParameterConstraints().pooling_factors
    twice = [
        name
        for name, each in zip(names, found, strict=True)
        if name in measured.names
        and each.table.name in constraints
        and list(constraints[each.table.name].pooling_factors) != default
    ]
    if twice:
        raise ValueError(
            f"both the statistics of lookups (tables) and constraints give pooling factors of {shown(twice)}, so it is "
            "unclear which hold; leave pooling_factors out, or those tables out of the statistics"
        )


def _with_lookups(
    names: Sequence[str], details: Sequence[ModelTable], factors: Sequence[float], measured: Tables | None
) -> tuple[Tables, list[str]]:
    """The tables with their lookups, and notes on what was assumed.

    Raises:
        ValueError: measured statistics are of other tables.
    """
    listed = [
        ListedTable(name, detail.rows, detail.planned_dim, factor)
        for name, detail, factor in zip(names, details, factors, strict=True)
    ]
    tables = fill_missing_columns(listed).tables
    if measured is None:
        return tables, [f"how often rows of the {len(names)} tables are looked up is not known: a Zipf law is assumed"]
    known = {name: t for t, name in enumerate(measured.names)}
    pairs = [(t, known[name]) for t, name in enumerate(names) if name in known]
    for t, m in pairs:
        ours, theirs = (int(each[i]) for each, i in ((tables.rows, t), (measured.rows, m)))
        if ours != theirs:
            raise ValueError(
                f"table {names[t]!r} has {ours} rows in the model and {theirs} in the statistics of lookups, so they are of "
                "another model; measure them again"
            )
    columns = tables.columns(torch.arange(len(tables)))
    for column in ("pooling_factor", "bins", "lookups", "unique_rows"):
        for t, m in pairs:
            columns[column][t] = getattr(measured, column)[m].to(columns[column].dtype)
    missing = [name for name in names if name not in known]
    notes = [f"the statistics of lookups lack {', '.join(missing[:5])}: a Zipf law is assumed"] if missing else []
    return Tables(tuple(names), **columns), notes


def _largest_state(details: Sequence[ModelTable]) -> Optimizer:
    """The optimizer of all tables; where they differ, that with the most state, so that no device is overfilled."""
    used: set[Optimizer] = {detail.optimizer or "sgd" for detail in details}
    return max(sorted(used), key=lambda each: (BYTES_PER_ELEMENT_STATE[each], BYTES_PER_ROW_STATE[each]))


def _optimizer_notes(details: Sequence[ModelTable]) -> Iterator[str]:
    used = sorted({detail.optimizer or "sgd" for detail in details})
    if len(used) > 1:
        yield f"tables have the optimizers {', '.join(used)}; memory and costs are counted as {_largest_state(details)}'s"
