"""Times of the operators of every device's shards, on one device that stands for all."""

from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import Infeasible
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.cluster.sharded.job import ShardingJob, sample_counts
from dreamshard.testbeds.cluster.sharded.operators import RankOperators, asked_bytes
from dreamshard.testbeds.shard_runner import GRADIENT, DoesNotFitError, ShardRunner


def device_times(runner: ShardRunner, task: PlacementTask, shards: Shards) -> Float[Tensor, "R D 2"] | Infeasible:
    """Milliseconds of each timed pass, forward and backward, or the first device whose shards did not fit."""
    starts = list(accumulate(sample_counts(runner.setup.batch_size, task.num_devices), initial=0))
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the CPU's clock counts one thread
    times = []
    try:
        for d, job in enumerate(ShardingJob.each(range(task.num_devices), task, shards)):
            try:
                times.append(_times_of(runner, job, slice(starts[d], starts[d + 1])))
            except DoesNotFitError as error:
                return Infeasible(device=d, asked_bytes=error.asked_bytes, free_bytes=error.free_bytes)
    finally:
        torch.set_num_threads(num_threads)
    return torch.stack(times, dim=1)


def _times_of(runner: ShardRunner, job: ShardingJob, samples: slice) -> Float[Tensor, "R 2"]:
    setup = runner.setup
    if not job.shards:
        return torch.zeros(setup.repeats, 2, dtype=torch.float64)

    def build() -> RankOperators:
        operators = RankOperators(job, runner, samples)
        operators.rehearse()
        return operators

    operators = runner.within_memory(build, asked_bytes(job, setup.batch_size))
    passes = [_pass(runner, operators) for _ in range(setup.warmups + setup.repeats)]
    return torch.tensor(passes[setup.warmups :], dtype=torch.float64)


def _pass(runner: ShardRunner, operators: RankOperators) -> tuple[float, float]:
    forward_ms = backward_ms = 0.0
    dense = operators.dense
    if dense is not None:
        dense.weights.grad = None
    for operator in operators.operators:
        pooled, spent_ms = runner.forward(operator.run)
        forward_ms += spent_ms
        backward_ms += runner.backward(pooled, torch.full_like(pooled, GRADIENT))
    if dense is not None:
        backward_ms += runner.clock.compute(dense.step)[1]
    return forward_ms, backward_ms
