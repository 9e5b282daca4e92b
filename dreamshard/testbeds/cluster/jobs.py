"""What ranks are, and the jobs that they receive."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dreamshard.costs import Exchange
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
class ExchangeJob:
    """An all-to-all to measure among `members`; each answers with `[R, 2]` milliseconds, there and back."""

    members: tuple[int, ...]
    exchange: Exchange


Job = ExchangeJob | ShardingJob


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
