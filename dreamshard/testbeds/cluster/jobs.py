"""What ranks are, and the jobs that they receive."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from dreamshard.costs import Exchange
from dreamshard.shards import Shards
from dreamshard.tables import Optimizer, Precision, Tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.cluster.sharded.job import ShardingJob

DeviceType = Literal["cpu", "cuda"]

STAGES = (
    "starting",
    "joining the other ranks",
    "waiting for work",
    "preparing",
    "reading lookups",
    "building the operator",
    "exchanging with the other ranks",
)
"""Stages of a rank, in order."""
STARTING, JOINING, IDLE, PREPARING = STAGES[:4]
EXCHANGING = STAGES[-1]


@dataclass(frozen=True)
class Gpu:
    """A GPU; its `uuid` tells it from others of the model."""

    model: str
    uuid: str
    memory_bytes: int


@dataclass(frozen=True)
class Rank:
    """A process that measures.

    Attributes:
        number: among all ranks, from 0.
        host: name of the machine, or of what stands for one.
        processor: model of the CPU, with the number of its cores.
        gpu: that this rank would use; None if it has none.
    """

    number: int
    host: str
    processor: str
    gpu: Gpu | None


@dataclass(frozen=True)
class PlacementJob:
    """A rank's shard of a placement to measure among `members`; it answers with `[R, 4]` milliseconds or an `Infeasible`.

    Attributes:
        names: of the `S` tables.
        columns: the other fields of `Tables`, `[S, ...]` each.
        sum_dims: `[D]` sum of the dims of each rank's tables.
    """

    members: tuple[int, ...]
    names: tuple[str, ...]
    columns: dict[str, npt.NDArray[Any]]
    sum_dims: npt.NDArray[np.int64]
    precision: Precision
    optimizer: Optimizer

    @classmethod
    def each(cls, members: tuple[int, ...], task: PlacementTask, shards: Shards) -> "Iterator[PlacementJob]":
        """The jobs of shards of whole tables and columns, in the order of `members`."""
        tables = shards.tables
        columns = {name: column.numpy() for name, column in tables.columns(torch.arange(len(tables))).items()}
        holders = shards.device.numpy()
        sum_dims = np.bincount(holders, columns["dim"], minlength=len(members)).astype(np.int64)
        order = np.argsort(holders, kind="stable")
        for own in np.split(order, np.cumsum(np.bincount(holders, minlength=len(members)))[:-1]):
            yield cls(
                members,
                tuple(tables.names[s] for s in own.tolist()),
                {name: column[own] for name, column in columns.items()},
                sum_dims,
                task.precision,
                task.optimizer,
            )

    @property
    def shard(self) -> Tables:
        """The rank's tables."""
        return Tables(self.names, **{name: torch.from_numpy(column) for name, column in self.columns.items()})


@dataclass(frozen=True)
class ExchangeJob:
    """An all-to-all to measure among `members`; each answers with `[R, 2]` milliseconds, there and back."""

    members: tuple[int, ...]
    exchange: Exchange


Job = PlacementJob | ExchangeJob | ShardingJob


@dataclass(frozen=True)
class Work:
    """Jobs that every rank receives.

    Attributes:
        jobs: by number of rank; a rank without one waits.
        setup: the pickled `TestbedSetup`.
        timeout_s: time limit of each job.
    """

    device_type: DeviceType
    jobs: Mapping[int, Job]
    setup: bytes
    timeout_s: float
