"""A training step of tables that are sharded in any way, timed on one rank, or on one device that stands for all."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from dreamshard.costs import Infeasible
from dreamshard.testbeds.device import Device, DoesNotFitError
from dreamshard.testbeds.exchange import Collectives, Teams, agree, index_exchange
from dreamshard.testbeds.jobs import ShardingJob, sample_starts
from dreamshard.testbeds.operators import RankOperators

Floats = npt.NDArray[np.float64]


def measure_sharding(job: ShardingJob, device: Device, teams: Teams) -> Floats | Infeasible:
    """`[R, 5]` milliseconds of each timed pass on this rank, or the first shards that did not fit.

    The phases, and the exchange of indices. Each operator runs by itself; each collective begins when all ranks are there.
    """
    everyone = teams.everyone
    built: tuple[RankOperators, Collectives] | DoesNotFitError
    try:
        built = device.within_memory(
            lambda: (operators_of(job, device, everyone.rank), Collectives.of(job, teams, device)),
            job.asked_bytes(device.setup.batch_size, everyone.rank),
        )
    except DoesNotFitError as error:
        built = error
    infeasible = agree(built if isinstance(built, DoesNotFitError) else None, everyone, device.device)
    if infeasible or isinstance(built, DoesNotFitError):
        assert infeasible  # agreed on above
        return infeasible
    operators, collectives = built
    dense, exchanged = operators.dense, operators.exchanged_lookups
    indices = [index_exchange(*exchanged, everyone, device)] if job.with_indices else []

    def timed(work: Callable[[], Tensor]) -> float:
        everyone.barrier(device)
        return device.clock.communicate(work)[1]

    def reduce() -> Tensor:
        assert dense is not None
        dist.all_reduce(dense.gradient, group=everyone.group)
        return dense.gradient

    passes = []
    for _ in range(device.setup.warmups + device.setup.repeats):
        forward_ms = operators.forward()
        forward_comm_ms = sum(map(timed, collectives.forward))
        backward_comm_ms = sum(map(timed, collectives.backward))
        backward_ms = operators.backward()
        if dense is not None:
            backward_comm_ms += timed(reduce)
            backward_ms += operators.dense_step()
        passes.append((forward_ms, forward_comm_ms, backward_comm_ms, backward_ms, sum(map(timed, indices))))
    return np.array(passes[device.setup.warmups :])


def measure_operators(job: ShardingJob, device: Device, rank: int) -> Floats:
    """`[R, 2]` milliseconds of each timed pass of a rank's operators, forward and backward, without any exchange.

    Raises:
        DoesNotFitError: the device has no room for the shards.
        ValueError: fbgemm has no such operator, or lookups are missing.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the CPU's clock counts one thread
    try:
        asked = job.asked_bytes(device.setup.batch_size)
        operators = device.within_memory(lambda: operators_of(job, device, rank), asked)
        passes = []
        for _ in range(device.setup.warmups + device.setup.repeats):
            forward_ms = operators.forward()
            passes.append((forward_ms, operators.backward() + operators.dense_step()))
    finally:
        torch.set_num_threads(num_threads)
    return np.array(passes[device.setup.warmups :])


def operators_of(job: ShardingJob, device: Device, rank: int) -> RankOperators:
    """The operators of a rank's job."""
    starts = sample_starts(device.setup.batch_size, len(job.device_dims))
    return RankOperators(job.shards, job.optimizer, device, slice(starts[rank], starts[rank + 1]))
