"""One rank's part of measuring tables that are sharded in any way: its operators, and their exchange with other ranks."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import Infeasible
from dreamshard.testbeds.cluster.passes import agree
from dreamshard.testbeds.cluster.sharded.exchange import Pooled, PooledExchange, Teams, all_reduce, index_sizes
from dreamshard.testbeds.cluster.sharded.job import Route, ShardingJob
from dreamshard.testbeds.cluster.sharded.operators import RankOperators, asked_bytes
from dreamshard.testbeds.shard_runner import GRADIENT, DoesNotFitError, ShardRunner


class ShardedStep:
    """A training step of a placement on one rank.

    Args:
        job: of this rank.
        runner: of its device.
        teams: that it exchanges among.

    Raises:
        DoesNotFitError: the device has no room for the shards or for what is exchanged.
        ValueError: fbgemm has no such operator, or lookups are missing.
    """

    def __init__(self, job: ShardingJob, runner: ShardRunner, teams: Teams) -> None:
        self._job, self._runner, self._teams = job, runner, teams
        self._batch_size = runner.setup.batch_size
        self._exchange = PooledExchange(job, teams, self._batch_size, runner.device)

        def build() -> RankOperators:
            operators = RankOperators(job, runner, self._exchange.samples)
            operators.rehearse()
            return operators

        self.operators = runner.within_memory(build, asked_bytes(job, self._batch_size))
        runner.within_memory(self._exchange.rehearse, self._exchange.num_bytes)
        self._pooled: list[Tensor] = []
        self._comm_ms = 0.0
        self._index_sizes: tuple[list[int], list[int]] | None = None

    @property
    def counts(self) -> list[int]:
        """Samples of each rank."""
        return self._exchange.counts

    def forward(self) -> tuple[Pooled, float, float]:
        """Pooled vectors of this rank's samples, and milliseconds of lookups and of collectives."""
        compute_ms = 0.0
        matrices: dict[Route, Tensor] = {}
        self._pooled = []
        for operator in self.operators.operators:
            pooled, spent_ms = self._runner.forward(operator.run)
            compute_ms += spent_ms
            self._pooled.append(pooled)
            matrices[operator.route] = operator.put(
                pooled.detach(), matrices.get(operator.route), self._width(operator.route)
            )
        self._comm_ms = 0.0
        routes: tuple[Route, ...] = ("device", "everywhere", "host", "copies")
        device, everywhere, host, copies = (matrices.get(route, self._empty(route)) for route in routes)
        exchanged = self._exchange.forward(device, everywhere, host, copies, self._timed)
        return exchanged, compute_ms, self._comm_ms

    def backward(self, gradient: Pooled) -> tuple[float, float]:
        """Milliseconds of collectives, and of gradients and optimizers, for gradients of this rank's samples."""
        self._comm_ms, compute_ms = 0.0, 0.0
        device, everywhere, host = self._exchange.backward(gradient, self._timed)
        by_route: dict[Route, Tensor] = {
            "device": device,
            "everywhere": everywhere,
            "host": host,
            "copies": gradient.copies,
        }
        dense = self.operators.dense
        if dense is not None:
            dense.weights.grad = None
        for operator, pooled in zip(self.operators.operators, self._pooled, strict=True):
            compute_ms += self._runner.backward(pooled, operator.columns(by_route[operator.route]))
        if dense is not None:
            own = dense.gradient
            self._timed(lambda: all_reduce(own, self._teams.everyone))
            compute_ms += self._runner.clock.compute(dense.step)[1]
        return self._comm_ms, compute_ms

    def exchange_indices(self) -> float:
        """Milliseconds of an exchange of as many indices and lengths as the shards get."""
        everyone = self._teams.everyone
        exchanged = sum(self._job.device_dims) + self._job.everywhere_dims + sum(self._job.host_dims)
        if not exchanged or not self._job.with_indices:
            return 0.0
        if self._index_sizes is None:
            wanted = self.operators.indices_by_sample_rank(self._exchange.counts)
            self._index_sizes = index_sizes(wanted, everyone, self._runner.device)
        sent, received = self._index_sizes
        own = torch.zeros(sum(sent), dtype=torch.int64, device=self._runner.device)
        others = torch.empty(sum(received), dtype=torch.int64, device=self._runner.device)

        def exchange() -> Tensor:
            dist.all_to_all_single(others, own, received, sent, group=everyone.group)
            return others

        self._comm_ms = 0.0
        self._timed(exchange)
        return self._comm_ms

    def gradient(self, pooled: Pooled) -> Pooled:
        """A constant in place of the gradients of the layers above."""
        return Pooled(
            device=tuple(torch.full_like(part, GRADIENT) for part in pooled.device),
            everywhere=torch.full_like(pooled.everywhere, GRADIENT),
            hosts=tuple(torch.full_like(part, GRADIENT) for part in pooled.hosts),
            copies=torch.full_like(pooled.copies, GRADIENT),
        )

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._exchange.barrier()

    def _timed(self, work: Callable[[], Tensor]) -> Tensor:
        """A collective that begins when every rank is there; adds up its time."""
        self.barrier()
        result, spent_ms = self._runner.clock.communicate(work)
        self._comm_ms += spent_ms
        return result

    def _width(self, route: Route) -> int:
        job, everyone = self._job, self._teams.everyone
        if route == "device":
            return job.device_dims[everyone.rank]
        if route == "host":
            return job.host_dims[everyone.rank // self._teams.host.size] if sum(job.host_dims) else 0
        return job.everywhere_dims if route == "everywhere" else job.copies_dims

    def _empty(self, route: Route) -> Float[Tensor, "B W"]:
        """What a rank without shards of a route contributes to it."""
        samples = self._exchange.counts[self._teams.everyone.rank] if route == "copies" else self._batch_size
        return torch.zeros(samples, self._width(route), device=self._runner.device)


def measure_sharding(
    job: ShardingJob, runner: ShardRunner, teams: Teams, enter: Callable[[str], None]
) -> npt.NDArray[np.float64] | Infeasible:
    """`[R, 5]` milliseconds of each timed pass on this rank, or the first shards that did not fit."""
    try:
        step: ShardedStep | DoesNotFitError = ShardedStep(job, runner, teams)
    except DoesNotFitError as error:
        step = error
    enter("exchanging with the other ranks")
    if infeasible := agree(step if isinstance(step, DoesNotFitError) else None, teams.everyone, runner.device):
        return infeasible
    if isinstance(step, DoesNotFitError):  # agreed on above
        raise step
    passes = []
    for _ in range(runner.setup.warmups + runner.setup.repeats):
        pooled, forward_ms, forward_comm_ms = step.forward()
        backward_comm_ms, backward_ms = step.backward(step.gradient(pooled))
        passes.append((forward_ms, forward_comm_ms, backward_comm_ms, backward_ms, step.exchange_indices()))
    return np.array(passes[runner.setup.warmups :])
