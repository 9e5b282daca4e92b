"""A training step of tables that are sharded in any way, timed on one rank: its operators and its collectives.

A step's values are constants: a collective's time depends on sizes alone. Each rank trains on a part of the batch: all on
as many samples, the first ones on one more if need be. Collectives that need equal parts pad the samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dreamshard.costs import Exchange, Infeasible
from dreamshard.shards import Shards
from dreamshard.tasks import Activations
from dreamshard.testbeds.device import Device, Floats
from dreamshard.testbeds.operators import VALUE, RankOperators, sample_counts

ELEMENT_BYTES = 4  # fp32

Group = dist.ProcessGroup
Work = Callable[[], object]


class Teams(NamedTuple):
    """The groups of ranks that one rank exchanges among.

    Attributes:
        everyone: all ranks of the placement; rank `d` of them is device `d`.
        host: ranks that share rows of tables on one host; None if there are no such tables.
        across: ranks of equal number on all hosts.
    """

    everyone: Group
    host: Group | None = None
    across: Group | None = None


def collectives_of(shards: Shards, teams: Teams, device: Device) -> list[tuple[Work, Work]]:
    """The exchanges of a rank in a step, one after another, with their buffers on the device.

    First of pooled vectors, until each rank has those of its samples; then of their gradients, until each rank has those of
    the vectors that it pooled. `shards` are those of all devices.
    """
    found, place, carried = [], device.device, shards.per_device(shards.traffic)  # [D, 4]
    everyone, host, across = teams
    counts, rank = sample_counts(device.setup.batch_size, everyone.size()), everyone.rank()
    most, dims, row_dims = counts[0], carried[:, 0], int(carried[:, 1].max())
    host_dims = carried[:: shards.devices_per_host, 3].tolist()
    if dims.any():
        own = [count * int(dims[rank]) for count in counts]  # by sample's rank
        found.append(all_to_all(own, (counts[rank] * dims).tolist(), everyone, place))
    if row_dims:
        found.append(_reduce_scatter(most * row_dims, everyone, place))
    if host is not None and across is not None:  # partial sums within the host, then each host's samples between hosts
        width = most * host_dims[rank // host.size()]
        sum_up, gather = _reduce_scatter(across.size() * width, host, place)
        there, back = all_to_all([width] * across.size(), [most * each for each in host_dims], across, place)
        found.append((lambda: (sum_up(), there()), lambda: (back(), gather())))
    return found


def measure_step(shards: Shards, device: Device, rank: int, teams: Teams | None = None) -> Floats | Infeasible:
    """`[R, 4]` milliseconds of each timed pass on this rank by phase, or the first shards that did not fit.

    `shards` are those of all devices. Each operator runs alone; each collective begins when all ranks are there. Without
    `teams` there are no collectives.

    Raises:
        ValueError: lookups are missing.
    """
    everyone = teams.everyone if teams else None
    asked_bytes = step_bytes(shards, device.setup.batch_size, rank, is_exchanged=teams is not None)
    built = device.within_memory(
        lambda: (RankOperators(shards, device, rank), collectives_of(shards, teams, device) if teams else []),
        asked_bytes,
    )
    misfit = None
    if built is None:
        sizes = {"free_bytes": device.free_bytes(), "foreign_bytes": device.foreign_bytes()}
        misfit = Infeasible(device=rank, asked_bytes=asked_bytes, **sizes)
    misfits = [misfit]
    if everyone is not None:
        misfits *= everyone.size()
        dist.all_gather_object(misfits, misfit, group=everyone)
    if infeasible := next(filter(None, misfits), None):
        return infeasible
    assert built is not None
    operators, collectives = built

    def once() -> tuple[float, ...]:
        if not operators.operators:
            device.flush()
        forward_ms = operators.forward()
        forward_comm_ms = sum((_timed(there, everyone, device) for there, _ in collectives), 0.0)
        backward_comm_ms = sum((_timed(back, everyone, device) for _, back in collectives), 0.0)
        backward_ms = operators.backward()
        if operators.dense is not None:
            reduce = partial(dist.all_reduce, operators.dense.gradient, group=everyone)
            backward_comm_ms += _timed(reduce, everyone, device)
            backward_ms += device.clock.compute(operators.dense.step)[1]
        return forward_ms, forward_comm_ms, backward_comm_ms, backward_ms

    return _passes(device, once)


def measure_exchange(exchange: Exchange, device: Device, team: Group) -> Floats:
    """`[R, 2]` milliseconds of each timed all-to-all and its way back on this rank.

    Every rank sends each rank an equal share of its bytes, the first ones an element more if need be.

    Raises:
        MemoryError: this rank has no memory for the bytes.
    """
    shares = [sample_counts(sent // ELEMENT_BYTES, team.size()) for sent in exchange.sent_bytes.tolist()]
    sent, received = shares[team.rank()], [share[team.rank()] for share in shares]
    asked_bytes = 2 * ELEMENT_BYTES * (sum(sent) + sum(received))
    both = device.within_memory(lambda: all_to_all(sent, received, team, device.device), asked_bytes)
    if both is None:
        raise MemoryError(f"{asked_bytes} bytes do not fit a device that has {device.free_bytes()} free")

    def once() -> list[float]:
        device.flush()
        return [_timed(work, team, device) for work in both]

    return _passes(device, once)


def _passes(device: Device, once: Callable[[], Sequence[float]]) -> Floats:
    """`[R, P]` milliseconds of each timed pass."""
    warmups, repeats = device.setup.warmups, device.setup.repeats
    return np.array([once() for _ in range(warmups + repeats)][warmups:])


def _timed(work: Work, team: Group | None, device: Device) -> float:
    """Milliseconds after all ranks are there, so that waiting is not timed as communication; 0 without a team.

    None goes on before all are done: on a CPU, one that computes already would hold up another that still receives.
    """
    if team is None:
        return 0.0
    dist.barrier(group=team)
    device.synchronize()
    spent_ms = device.clock.communicate(work)[1]
    dist.barrier(group=team)
    return spent_ms


def step_bytes(shards: Shards, batch_size: int, rank: int, *, is_exchanged: bool) -> int:
    """Memory for a rank's shards, their vectors and gradients, and the buffers of its collectives both ways."""
    buffers = 2 * ELEMENT_BYTES * is_exchanged
    held = Activations(batch_size=batch_size, sent_bytes=2 * ELEMENT_BYTES + buffers, received_bytes=buffers)
    task = replace(shards.task, activations=held)
    return int(replace(shards, task=task).on(rank).device_bytes.sum()) + task.received_bytes


def all_to_all(sent: list[int], received: list[int], team: Group, place: torch.device) -> tuple[Work, Work]:
    """An all-to-all and its way back, by the elements that this rank sends to and receives from each."""
    own, others = (torch.full((sum(counts),), VALUE, device=place) for counts in (sent, received))
    there = _exchange(dist.all_to_all_single, team, others, own, received, sent)
    return there, _exchange(dist.all_to_all_single, team, own, others, sent, received)


def _reduce_scatter(count: int, team: Group, place: torch.device) -> tuple[Work, Work]:
    """A reduce-scatter of partial sums, of which each rank gets `count` elements, and the all-gather back."""
    whole, gathered = (torch.full((team.size() * count,), VALUE, device=place) for _ in range(2))
    part, gradient = whole[:count].clone(), whole[:count].clone()
    there = _exchange(dist.reduce_scatter_single, team, part, whole)
    return there, _exchange(dist.all_gather_single, team, gathered, gradient)


def _exchange(collective: Callable[..., Any], team: Group, out: Tensor, given: Tensor, *counts: list[int]) -> Work:
    """A collective that fills `out`; nothing moves in a team of one."""
    return partial(collective, out, given, *counts, group=team) if team.size() > 1 else lambda: None
