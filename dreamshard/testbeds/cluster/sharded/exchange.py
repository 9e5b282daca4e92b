"""The collectives that bring pooled vectors to their samples and gradients back, for every way to shard.

Each rank trains on a part of the batch: all on as many samples, the first ones on one more if need be. Collectives that need
equal parts pad the samples with zeros.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from dreamshard.testbeds.cluster.passes import AllToAll, Team
from dreamshard.testbeds.cluster.sharded.job import ShardingJob, sample_counts

# PyTorch 2.13 renamed both and warns of the old names, which earlier ones know alone.
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)

Timer = Callable[[Callable[[], Tensor]], Tensor]
"""Runs a collective and adds up how long it took."""


@dataclass(frozen=True)
class Teams:
    """The groups of ranks that one rank exchanges among.

    Attributes:
        everyone: all ranks of the placement.
        host: ranks that share rows of tables on one host.
        across: ranks of equal number on all hosts.
    """

    everyone: Team
    host: Team
    across: Team


@dataclass(frozen=True)
class Pooled:
    """Pooled vectors of one rank's `N` samples, or gradients of them, as they are exchanged.

    Attributes:
        device: by rank, `[N, S]` of its table- and column-wise shards.
        everywhere: `[N, S]` of row-wise tables.
        hosts: by host, `[N, S]` of the tables on it.
        copies: `[N, S]` of data-parallel tables.
    """

    device: tuple[Float[Tensor, "N _"], ...]
    everywhere: Float[Tensor, "N _"]
    hosts: tuple[Float[Tensor, "N _"], ...]
    copies: Float[Tensor, "N _"]


class PooledExchange:
    """Exchanges what is pooled, and its gradients, among the ranks of a placement.

    Args:
        job: of this rank.
        teams: that it exchanges among.
        batch_size: samples of all ranks.
        device: of the tensors.

    Attributes:
        counts: `D` samples of each rank.
    """

    def __init__(self, job: ShardingJob, teams: Teams, batch_size: int, device: torch.device) -> None:
        self._job = job
        self._teams = teams
        self._device = device
        self.counts = sample_counts(batch_size, teams.everyone.size)
        self._starts = list(accumulate(self.counts, initial=0))
        self._most = self.counts[0]
        self._rank = teams.everyone.rank
        self._all_to_all = AllToAll.of_placement(list(job.device_dims), batch_size, teams.everyone, device)
        self._own_host = self._rank // teams.host.size if sum(job.host_dims) else 0

    @property
    def samples(self) -> slice:
        """Of the batch, this rank's."""
        return slice(self._starts[self._rank], self._starts[self._rank + 1])

    @property
    def num_bytes(self) -> int:
        """Memory for what is sent and received, fp32, in both directions."""
        job = self._job
        whole = job.device_dims[self._rank] + job.everywhere_dims + job.host_dims[self._own_host]
        own = sum(job.device_dims) + job.everywhere_dims + sum(job.host_dims)
        return 4 * 2 * (2 * whole * self._most * len(self.counts) + own * self._most)

    def rehearse(self) -> None:
        """Allocate the memory once, before other ranks wait for this one."""
        torch.empty(self.num_bytes // 4, device=self._device)
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._all_to_all.barrier()

    def forward(
        self,
        device: Float[Tensor, "B S"],
        everywhere: Float[Tensor, "B _"],
        host: Float[Tensor, "B _"],
        copies: Float[Tensor, "N _"],
        timer: Timer,
    ) -> Pooled:
        """From what this rank pooled for the whole batch (partial sums of row blocks) to its samples of all tables."""
        job, own = self._job, self.counts[self._rank]
        received: tuple[Tensor, ...] = tuple(copies.new_zeros(own, 0) for _ in job.device_dims)
        if sum(job.device_dims):
            flat = timer(lambda: self._all_to_all.forward(device))
            sizes = [own * dims for dims in job.device_dims]
            received = tuple(
                part.reshape(own, dims) for part, dims in zip(flat.split(sizes), job.device_dims, strict=True)
            )
        summed = everywhere.new_zeros(own, 0)
        if job.everywhere_dims:
            padded = self._padded(everywhere)  # [D, M, R]
            summed = timer(lambda: _reduce_scatter(padded, self._teams.everyone))[:own]
        hosts = tuple(host.new_zeros(own, 0) for _ in job.host_dims)
        if sum(job.host_dims):
            by_place = self._by_place(self._padded(host))  # [P, H, M, S]
            delivered = timer(lambda: self._host_forward(by_place)).split([self._most * dims for dims in job.host_dims])
            hosts = tuple(
                part.reshape(self._most, dims)[:own] for part, dims in zip(delivered, job.host_dims, strict=True)
            )
        return Pooled(device=received, everywhere=summed, hosts=hosts, copies=copies)

    def backward(self, gradient: Pooled, timer: Timer) -> tuple[Tensor, Tensor, Tensor]:
        """From gradients of this rank's samples to those of what it pooled: `[B, S]` of its own, of rows, of its host."""
        job, batch = self._job, sum(self.counts)
        device = everywhere = host = torch.empty(batch, 0, device=self._device)
        if sum(job.device_dims):
            flat = torch.cat([part.reshape(-1) for part in gradient.device])
            device = timer(lambda: self._all_to_all.backward(flat)).reshape(batch, -1)
        if job.everywhere_dims:
            own = self._filled(gradient.everywhere)
            everywhere = self._without_padding(timer(lambda: _all_gather(own, self._teams.everyone)))
        if sum(job.host_dims):
            parts = torch.cat([self._filled(part).reshape(-1) for part in gradient.hosts])
            by_place = timer(lambda: self._host_backward(parts))  # [P, H, M, S]
            host = self._without_padding(by_place.transpose(0, 1).reshape(len(self.counts), self._most, -1))
        return device, everywhere, host

    def _host_forward(self, by_place: Float[Tensor, "P H M S"]) -> Float[Tensor, " R"]:
        """Add up partial sums within the host, then deliver each host's samples; flat, host after host."""
        across, dims = self._teams.across, self._job.host_dims
        own = _reduce_scatter(by_place, self._teams.host)  # [H, M, S]
        if across.size == 1:
            return own.reshape(-1)
        received = torch.empty(self._most * sum(dims), device=self._device)
        sent = [self._most * dims[self._own_host]] * across.size
        dist.all_to_all_single(
            received, own.reshape(-1), [self._most * each for each in dims], sent, group=across.group
        )
        return received

    def _host_backward(self, parts: Float[Tensor, " R"]) -> Float[Tensor, "P H M S"]:
        """The way back of `_host_forward`."""
        across, dims = self._teams.across, self._job.host_dims
        width = dims[self._own_host]
        received = parts
        if across.size > 1:
            received = torch.empty(self._most * width * across.size, device=self._device)
            back = [self._most * width] * across.size
            dist.all_to_all_single(received, parts, back, [self._most * each for each in dims], group=across.group)
        return _all_gather(received.reshape(across.size, self._most, width), self._teams.host)

    def _by_place(self, padded: Float[Tensor, "D M S"]) -> Float[Tensor, "P H M S"]:
        """Samples by their rank's number on its host, then by host."""
        places = self._teams.host.size
        return padded.reshape(-1, places, self._most, padded.shape[-1]).transpose(0, 1).contiguous()

    def _padded(self, pooled: Float[Tensor, "B S"]) -> Float[Tensor, "D M S"]:
        if len(set(self.counts)) == 1:
            return pooled.reshape(len(self.counts), self._most, -1)
        return torch.stack([self._filled(part) for part in pooled.split(self.counts)])

    def _filled(self, own: Float[Tensor, "N S"]) -> Float[Tensor, "M S"]:
        missing = self._most - len(own)
        return torch.cat([own, own.new_zeros(missing, own.shape[1])]) if missing else own.contiguous()

    def _without_padding(self, padded: Float[Tensor, "D M S"]) -> Float[Tensor, "B S"]:
        if len(set(self.counts)) == 1:
            return padded.reshape(sum(self.counts), -1)
        return torch.cat([part[:count] for part, count in zip(padded, self.counts, strict=True)])


def index_sizes(received: list[int], team: Team, device: torch.device) -> tuple[list[int], list[int]]:
    """How many elements to send to each rank, and to receive, where each rank knows what it receives."""
    wanted = torch.tensor(received, dtype=torch.int64, device=device)
    sent = torch.empty_like(wanted)
    dist.all_to_all_single(sent, wanted, group=team.group)
    return sent.tolist(), received


def all_reduce(gradient: Tensor, team: Team) -> Tensor:
    """Add up a gradient of all ranks, in place."""
    dist.all_reduce(gradient, group=team.group)
    return gradient


def _reduce_scatter(parts: Tensor, team: Team) -> Tensor:
    """This rank's part of `[D, ...]`, summed over the ranks."""
    if team.size == 1:
        return parts[0]
    own = torch.empty_like(parts[0])
    _REDUCE_SCATTER(own.view(-1), parts.reshape(-1), group=team.group)
    return own


def _all_gather(own: Tensor, team: Team) -> Tensor:
    """`[D, ...]` of every rank's part."""
    if team.size == 1:
        return own[None]
    parts = torch.empty(team.size, *own.shape, device=own.device)
    _ALL_GATHER(parts.view(-1), own.reshape(-1), group=team.group)
    return parts
