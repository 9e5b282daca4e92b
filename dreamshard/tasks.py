"""Placement tasks: tables to place on equal devices."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dreamshard.constraints import UNCONSTRAINED, Constraints
from dreamshard.files import MOST_DEVICES
from dreamshard.tables import (
    BYTES_PER_ELEMENT_STATE,
    BYTES_PER_ROW_STATE,
    BYTES_PER_WEIGHT,
    INT8_ROW_BYTES,
    Optimizer,
    Precision,
    Tables,
)

UNCACHED_ROW_BYTES = 4
"""On the device, of a table in host memory: fbgemm's map from each row to its place in the cache, int32."""


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Memory of a training step besides tables, gradients of copies and caches: lookups, and the vectors that are exchanged.

    Attributes:
        batch_size: samples per step of all devices; 0 counts nothing.
        lookup_bytes: per lookup of a device's shards: the ids of all batches that are in memory at once.
        cached_lookup_bytes: of these, only of tables in host memory; besides `lookup_bytes`.
        sent_bytes: per column of the vectors, or partial sums, that a device's shards make for the whole batch.
        received_bytes: per column of the vectors that a device gets of all tables for its own samples.
    """

    batch_size: int = 0
    lookup_bytes: int = 0
    cached_lookup_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True)
class PlacementTask:
    """Tables to place on `num_devices` equal devices.

    Attributes:
        tables: the `T` tables.
        num_devices: `D`.
        memory_bytes: bytes on each device for tables and `activations`.
        optimizer: fused into the backward pass; some keep state per row.
        name: in logs and in the lake.
        devices_per_host: devices `0..devices_per_host-1` share the first host, and so on; None for as many per host as the
            hardware has.
        batch_size: training samples per step for which costs are predicted, None for as many as were measured; a testbed
            measures the batch that it was set up with.
        precision_of: of single tables, instead of `precision`.
        constraints: that a placement must respect.
        activations: that count as memory of the devices, as in a trainer. None do in training and `dreamshard place`, as in
            the papers: memory is for weights, optimizer state and caches alone.

    Raises:
        ValueError: there are no tables, a precision or the optimizer is unknown, or the constraints contradict one another.
            Whether the tables fit the devices' memory is found by placing them.

    >>> ds.PlacementTask(task.tables, num_devices=8, memory_bytes=2**30, optimizer="adam").element_state_bytes
    8
    """

    tables: Tables
    num_devices: int
    memory_bytes: int
    precision: Precision = "fp32"
    optimizer: Optimizer = "sgd"
    name: str = "task"
    devices_per_host: int | None = None
    batch_size: int | None = None
    precision_of: Mapping[str, Precision] = field(default_factory=dict)
    constraints: Constraints = UNCONSTRAINED
    activations: Activations = Activations()

    def __post_init__(self) -> None:
        if len(self.tables) == 0:
            raise ValueError(f"{self.name} has no tables; give at least one")
        kinds: dict[str, tuple[Iterable[str], Iterable[str]]] = {
            "precision": ((self.precision, *self.precision_of.values()), BYTES_PER_WEIGHT),
            "optimizer": ((self.optimizer,), BYTES_PER_ROW_STATE),
        }
        for what, (given, known) in kinds.items():
            if unknown := sorted(set(given).difference(known)):
                raise ValueError(f"{self.name} has {what} {unknown[0]!r}; give one of {', '.join(known)}")
        for what, count in {"devices": self.num_devices, "devices per host": self.devices_per_host}.items():
            if count is not None and not 1 <= count <= MOST_DEVICES:
                raise ValueError(f"{self.name} has {count} {what}; give 1 to {MOST_DEVICES}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"{self.name} has a batch of {self.batch_size} samples; a step needs at least 1")
        if self.constraints is UNCONSTRAINED:
            return
        if reason := next(self.constraints.contradictions(self.tables.names, self.capacity_bytes.tolist()), ""):
            raise ValueError(f"the constraints of {self.name} cannot be met: {reason}")

    @cached_property
    def weight_bytes(self) -> Int[Tensor, " T"]:
        """`[T]` bytes of one weight."""
        return torch.tensor([BYTES_PER_WEIGHT[precision] for precision in self.precisions])

    @cached_property
    def row_bytes(self) -> Int[Tensor, " T"]:
        """`[T]` bytes per row besides weights and state per weight: quantisation, and the optimizer's state per row."""
        quantisation = torch.tensor([INT8_ROW_BYTES * (precision == "int8") for precision in self.precisions])
        return quantisation + BYTES_PER_ROW_STATE[self.optimizer]

    @property
    def element_state_bytes(self) -> int:
        """Bytes of optimizer state per weight."""
        return BYTES_PER_ELEMENT_STATE[self.optimizer]

    @cached_property
    def table_bytes(self) -> Int[Tensor, " T"]:
        """`[T]` bytes of each table on a device, whole."""
        stored = self.bytes_of(torch.arange(len(self.tables)), self.tables.rows, self.tables.dim)
        return stored + self.activation_bytes(self.tables.pooling_factor.double(), self.tables.sent_dim)

    def activation_bytes(
        self, lookups: Float[Tensor, " S"], columns: Int[Tensor, " S"], in_host: Bool[Tensor, " S"] | bool = False
    ) -> Int[Tensor, " S"]:
        """Bytes of so many lookups, and of vectors of so many columns, per sample of the whole batch."""
        activations = self.activations
        lookup_bytes = activations.batch_size * (activations.lookup_bytes + activations.cached_lookup_bytes * in_host)
        return (lookups * lookup_bytes).ceil().long() + columns * (activations.batch_size * activations.sent_bytes)

    @property
    def received_bytes(self) -> int:
        """Bytes of the vectors that each device gets for its own samples, wherever the tables are."""
        sizes = self.activations
        return -(-sizes.received_bytes * sizes.batch_size * int(self.tables.sent_dim.sum()) // self.num_devices)

    def bytes_of(
        self, table: Int[Tensor, " S"], rows: Int[Tensor, " S"], columns: Int[Tensor, " S"]
    ) -> Int[Tensor, " S"]:
        """Bytes of weights and state of parts of tables: so many rows and columns of each."""
        return rows * (columns * (self.weight_bytes[table] + self.element_state_bytes) + self.row_bytes[table])

    @cached_property
    def capacity_bytes(self) -> Int[Tensor, " D"]:
        """`[D]` memory for shards on each device, without the reserve and `received_bytes`."""
        given = self.constraints.memory_bytes_of
        memory = torch.tensor([given.get(device, self.memory_bytes) for device in range(self.num_devices)])
        return (memory - self.constraints.reserve_bytes - self.received_bytes).clamp(min=0)

    @property
    def precisions(self) -> list[Precision]:
        """`[T]` of each table's weights."""
        return [self.precision_of.get(name, self.precision) for name in self.tables.names]
