"""One rank's part of measuring: its fused operator, and the all-to-all with the other ranks."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import Exchange, Infeasible
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.shard_runner import GRADIENT, DoesNotFitError, ShardRunner

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Team:
    """The ranks that measure together; rank `d` of them is the task's device `d`."""

    rank: int
    size: int
    group: dist.ProcessGroup | None


class AllToAll:
    """The all-to-all of pooled vectors and of their gradients among all ranks of a team.

    Args:
        own: elements that this rank sends to each rank, and gets back.
        received: elements that each rank sends to this one.
    """

    def __init__(self, own: list[int], received: list[int], team: Team, device: torch.device) -> None:
        self._own = own
        self._all = received
        self._team = team
        self._device = device

    @classmethod
    def of_placement(cls, sum_dims: list[int], batch_size: int, team: Team, device: torch.device) -> "AllToAll":
        """Rank `d` starts with the whole batch for its own tables, `[B, S_d]`, and ends with its samples of all tables.

        The first ranks have a sample more if D does not divide the batch.

        Args:
            sum_dims: `S_d`, the sum of the dims of each rank's tables.
        """
        samples = [batch_size // team.size + (r < batch_size % team.size) for r in range(team.size)]
        own = [count * sum_dims[team.rank] for count in samples]  # by sample's rank
        return cls(own, [samples[team.rank] * dims for dims in sum_dims], team, device)

    @classmethod
    def of_exchange(cls, exchange: Exchange, team: Team, device: torch.device) -> "AllToAll":
        """Every rank sends each rank an equal share of its bytes, the first ones an element more if need be."""
        elements = (exchange.sent_bytes // FLOAT_BYTES).tolist()

        def share(sender: int, receiver: int) -> int:
            return int(elements[sender] // team.size + (receiver < elements[sender] % team.size))

        own = [share(team.rank, receiver) for receiver in range(team.size)]
        return cls(own, [share(sender, team.rank) for sender in range(team.size)], team, device)

    @property
    def num_bytes(self) -> int:
        """Memory of both directions on this rank, fp32."""
        return FLOAT_BYTES * (2 * sum(self._all) + sum(self._own))

    def rehearse(self) -> None:
        """Allocate the memory once, before other ranks wait for this one."""
        torch.empty(self.num_bytes, dtype=torch.uint8, device=self._device)

    def barrier(self) -> None:
        """Wait for all ranks, so that waiting is not timed as communication."""
        dist.barrier(group=self._team.group)
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def forward(self, pooled: Float[Tensor, "B S"]) -> Float[Tensor, " R"]:
        """Send each rank its samples of this rank's tables; receive this rank's samples of all tables."""
        received = torch.empty(sum(self._all), device=self._device)
        dist.all_to_all_single(received, pooled.reshape(-1), self._all, self._own, group=self._team.group)
        return received

    def backward(self, gradient: Float[Tensor, " R"]) -> Float[Tensor, " O"]:
        """Send gradients back; receive those of this rank's tables for the whole batch."""
        received = torch.empty(sum(self._own), device=self._device)
        dist.all_to_all_single(received, gradient, self._own, self._all, group=self._team.group)
        return received

    def pooled(self) -> Float[Tensor, " O"]:
        """What this rank sends, in place of its tables' pooled vectors."""
        return torch.full((sum(self._own),), GRADIENT, device=self._device)

    def gradient(self) -> Float[Tensor, " R"]:
        """The gradient of this rank's samples, in place of the layers above."""
        return torch.full((sum(self._all),), GRADIENT, device=self._device)


class RankMeasurer:
    """Measures this rank's part of placements and exchanges.

    Args:
        enter: called with the name of each stage as it begins, so that hangs and failures can be located.
    """

    def __init__(self, setup: TestbedSetup, device: torch.device, enter: Callable[[str], None]) -> None:
        self.setup = setup
        self.device = device
        self._enter = enter
        self.runner = ShardRunner(setup, device, enter)

    def measure_exchange(self, exchange: Exchange, team: Team) -> npt.NDArray[np.float64]:
        """`[R, 2]` milliseconds of each timed all-to-all and of its way back, on this rank.

        Raises:
            DoesNotFitError: this rank has no memory for the bytes.
        """
        all_to_all = AllToAll.of_exchange(exchange, team, self.device)
        self.runner.within_memory(all_to_all.rehearse, all_to_all.num_bytes)
        self._enter("exchanging with the other ranks")
        pooled, gradient = all_to_all.pooled(), all_to_all.gradient()
        passes = []
        for _ in range(self.setup.warmups + self.setup.repeats):
            all_to_all.barrier()
            _, forward_ms = self.runner.clock.communicate(lambda: all_to_all.forward(pooled))
            all_to_all.barrier()
            _, backward_ms = self.runner.clock.communicate(lambda: all_to_all.backward(gradient))
            passes.append((forward_ms, backward_ms))
        return np.array(passes[self.setup.warmups :])


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
