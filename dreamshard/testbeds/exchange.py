"""The collectives of a step: the groups of ranks that exchange, and what they send on buffers of constants.

A step's values are constants: what a collective takes depends on sizes alone. Each rank trains on a part of the batch: all on
as many samples, the first ones on one more if need be. Collectives that need equal parts pad the samples.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from dreamshard.costs import Exchange, Infeasible
from dreamshard.testbeds.device import Device, DoesNotFitError
from dreamshard.testbeds.jobs import ShardingJob, sample_counts

VALUE = 1e-4  # of every element
# PyTorch 2.13 renamed both and warns of the old names, which earlier ones know alone.
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)

Work = Callable[[], Tensor]


@dataclass(frozen=True)
class Team:
    """Ranks that exchange, and this one's number among them."""

    rank: int
    size: int
    group: dist.ProcessGroup | None

    def barrier(self, device: Device) -> None:
        """Wait for all ranks, so that waiting is not timed as communication."""
        dist.barrier(group=self.group)
        device.synchronize()


@dataclass(frozen=True)
class Teams:
    """The groups of ranks that one rank exchanges among.

    Attributes:
        everyone: all ranks of the placement; rank `d` of them is device `d`.
        host: ranks that share rows of tables on one host.
        across: ranks of equal number on all hosts.
    """

    everyone: Team
    host: Team
    across: Team


@dataclass
class Collectives:
    """What a rank exchanges in a step, one after another.

    Attributes:
        forward: pooled vectors, until each rank has those of its samples.
        backward: their gradients, until each rank has those of what it pooled.
    """

    forward: list[Work] = field(default_factory=list)
    backward: list[Work] = field(default_factory=list)

    @classmethod
    def of(cls, job: ShardingJob, teams: Teams, device: Device) -> "Collectives":
        """The collectives of a rank's job, with their buffers on the device."""
        found, place = cls(), device.device
        everyone, host, across = teams.everyone, teams.host, teams.across
        counts = sample_counts(device.setup.batch_size, everyone.size)
        most, rank = counts[0], everyone.rank
        if sum(job.device_dims):
            own = [count * job.device_dims[rank] for count in counts]  # by sample's rank
            found._add(*all_to_all(own, [counts[rank] * dims for dims in job.device_dims], everyone, place))
        if job.everywhere_dims:
            found._add(*_reduce_scatter(most * job.everywhere_dims, everyone, place))
        if sum(job.host_dims):  # partial sums within the host, then each host's samples between hosts
            width = most * job.host_dims[rank // host.size]
            within = _reduce_scatter(across.size * width, host, place)
            between = all_to_all([width] * across.size, [most * dims for dims in job.host_dims], across, place)
            found._add(lambda: (within[0](), between[0]())[1], lambda: (between[1](), within[1]())[1])
        return found

    def _add(self, there: Work, back: Work) -> None:
        self.forward.append(there)
        self.backward.append(back)


def index_exchange(num_lookups: int, num_shards: int, team: Team, device: Device) -> Work:
    """The exchange of as many indices and lengths as a rank's shards get; all ranks make it together."""
    batch = device.setup.batch_size
    counts = sample_counts(batch, team.size)
    received = torch.tensor([num_lookups * n // batch + num_shards * n for n in counts], device=device.device)
    sent = torch.empty_like(received)
    dist.all_to_all_single(sent, received, group=team.group)  # each rank knows what it receives
    return all_to_all(sent.tolist(), received.tolist(), team, device.device, torch.int64)[0]


def all_to_all(
    sent: list[int], received: list[int], team: Team, place: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[Work, Work]:
    """An all-to-all and its way back, by the elements that this rank sends to and receives from each."""
    own = torch.full((sum(sent),), VALUE, device=place).to(dtype)
    others = torch.full((sum(received),), VALUE, device=place).to(dtype)

    def there() -> Tensor:
        if team.size > 1:
            dist.all_to_all_single(others, own, received, sent, group=team.group)
        return others

    def back() -> Tensor:
        if team.size > 1:
            dist.all_to_all_single(own, others, sent, received, group=team.group)
        return own

    return there, back


def _reduce_scatter(count: int, team: Team, place: torch.device) -> tuple[Work, Work]:
    """A reduce-scatter of partial sums, of which each rank gets `count` elements, and the all-gather back."""
    whole = torch.full((team.size * count,), VALUE, device=place)
    part, gradient, gathered = torch.empty(count, device=place), whole[:count].clone(), torch.empty_like(whole)

    def there() -> Tensor:
        if team.size > 1:
            _REDUCE_SCATTER(part, whole, group=team.group)
        return part

    def back() -> Tensor:
        if team.size > 1:
            _ALL_GATHER(gathered, gradient, group=team.group)
        return gathered

    return there, back


def measure_exchange(exchange: Exchange, device: Device, team: Team) -> npt.NDArray[np.float64]:
    """`[R, 2]` milliseconds of each timed all-to-all and of its way back, on this rank.

    Every rank sends each rank an equal share of its bytes, the first ones an element more if need be.

    Raises:
        DoesNotFitError: this rank has no memory for the bytes.
    """
    elements = (exchange.sent_bytes // 4).tolist()

    def share(sender: int, receiver: int) -> int:
        return int(elements[sender] // team.size + (receiver < elements[sender] % team.size))

    sent, received = zip(*((share(team.rank, r), share(r, team.rank)) for r in range(team.size)), strict=True)
    both = device.within_memory(
        lambda: all_to_all(list(sent), list(received), team, device.device), 8 * (sum(sent) + sum(received))
    )
    passes = []
    for _ in range(device.setup.warmups + device.setup.repeats):
        spent_ms = []
        for work in both:
            team.barrier(device)
            spent_ms.append(device.clock.communicate(work)[1])
        passes.append(spent_ms)
    return np.array(passes[device.setup.warmups :])


def agree(misfit: DoesNotFitError | None, team: Team, device: torch.device) -> Infeasible | None:
    """Share misfits among all ranks of a team; the first one, or None if all shards fit."""
    own_bytes = (0, 0) if misfit is None else (misfit.asked_bytes, misfit.free_bytes)
    own = torch.tensor(own_bytes, dtype=torch.int64, device=device)
    gathered = [torch.zeros_like(own) for _ in range(team.size)]
    dist.all_gather(gathered, own, group=team.group)
    for rank, (asked_bytes, free_bytes) in enumerate(torch.stack(gathered).tolist()):
        if asked_bytes:
            return Infeasible(device=rank, asked_bytes=asked_bytes, free_bytes=free_bytes)
    return None
