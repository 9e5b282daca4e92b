"""What a testbed and its ranks send each other; every message is pickled by name, so both sides import this module."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from dreamshard.exchange_sample import Exchange
from dreamshard.placement import Placement
from dreamshard.tables import Optimizer, Precision, Tables
from dreamshard.tasks import PlacementTask

DeviceType = Literal["cpu", "cuda"]

STAGES = (
    "starting",
    "joining the other ranks",
    "waiting for work",
    "reading lookups",
    "building the operator",
    "exchanging with the other ranks",
)
"""Stages of a rank, in order; in the last one it depends on the others."""

IDLE = STAGES[2]


@dataclass(frozen=True)
class Gpu:
    """A GPU; its `uuid` tells it from others of the model."""

    model: str
    uuid: str
    memory_bytes: int


@dataclass(frozen=True)
class Hello:
    """A rank's first message.

    Attributes:
        rank: number that whoever started the process gave it.
        host: name of the machine, or of what stands for one.
        processor: model of the CPU, with the number of its cores.
        gpu: that this rank would use; None if it has none.
    """

    rank: int
    pid: int
    host: str
    processor: str
    gpu: Gpu | None


@dataclass(frozen=True)
class Welcome:
    """The testbed's first message: join the other ranks.

    Attributes:
        device: number of this rank among `num_ranks`; ranks of one host have consecutive numbers.
        store_port: of the TCPStore, on the testbed's address, where the ranks find each other.
    """

    device: int
    num_ranks: int
    device_type: DeviceType
    store_port: int


@dataclass(frozen=True)
class UseSetup:
    """The pickled `TestbedSetup` of all further measurements."""

    setup: bytes


@dataclass(frozen=True)
class FormGroup:
    """Every rank takes part in making a group of `members`, by device; there is always one of all ranks."""

    members: tuple[int, ...]


@dataclass(frozen=True)
class PlacementJob:
    """A rank's shard of a placement to measure among `members`; it answers with `[R, 4]` milliseconds or an `Infeasible`.

    Arrays instead of tensors, and only the rank's own tables: a thousand ranks are sent a thousand jobs.

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
    def each(cls, members: tuple[int, ...], task: PlacementTask, placement: Placement) -> "Iterator[PlacementJob]":
        """The jobs of a placement of whole tables, in the order of `members`."""
        columns = {name: column.numpy() for name, column in task.tables.columns(torch.arange(len(task.tables))).items()}
        holders = placement.device.numpy()
        sum_dims = np.bincount(holders, columns["dim"], minlength=len(members)).astype(np.int64)
        order = np.argsort(holders, kind="stable")
        for own in np.split(order, np.cumsum(np.bincount(holders, minlength=len(members)))[:-1]):
            yield cls(
                members,
                tuple(task.tables.names[t] for t in own.tolist()),
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


@dataclass(frozen=True)
class StageReached:
    """A rank begins one of `STAGES`."""

    name: str


@dataclass(frozen=True)
class Answer:
    """A rank has done its job."""

    value: object


@dataclass(frozen=True)
class Failed:
    """A rank raised an error and exits."""

    stage: str
    error: str
    traceback: str


@dataclass(frozen=True)
class KeeperHello:
    """A keeper's first message; see `keeper.py`."""

    rank: int
    host: str


@dataclass(frozen=True)
class StartRank:
    """A keeper starts its rank, ending the one that runs."""


@dataclass(frozen=True)
class EndRank:
    """A keeper ends its rank and answers with `RankEnded`; with `gently` it first gives the rank time to end by itself."""

    gently: bool


@dataclass(frozen=True)
class RankEnded:
    """How a keeper's rank ended.

    Attributes:
        exit_code: negative if a signal ended it; None if no rank was running.
        log: last lines of its output.
        was_asked: whether this answers `EndRank`.
    """

    exit_code: int | None
    log: str
    was_asked: bool


@dataclass(frozen=True)
class Goodbye:
    """The testbed needs its keepers no more.

    Attributes:
        done: whether what it was needed for succeeded.
    """

    done: bool
