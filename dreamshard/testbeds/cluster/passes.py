"""One rank's part of measuring a placement: its fused operator, and the all-to-all with the other ranks."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import PHASES, Infeasible
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.shard_runner import GRADIENT, BuiltShard, DoesNotFitError, ShardRunner


class AllToAll:
    """The all-to-all of pooled vectors and of their gradients among all ranks.

    Rank `d` starts with the whole batch for its own tables, `[B, S_d]` with `S_d` the sum of their dims; afterwards rank
    `r` has its `b_r` samples of all tables. The first ranks have a sample more if D does not divide the batch.
    """

    def __init__(self, sum_dims: list[int], batch_size: int, rank: int, device: torch.device) -> None:
        num_ranks = len(sum_dims)
        samples = [batch_size // num_ranks + (r < batch_size % num_ranks) for r in range(num_ranks)]
        self._own = [count * sum_dims[rank] for count in samples]  # elements of own tables, by sample's rank
        self._all = [samples[rank] * dims for dims in sum_dims]  # elements of own samples, by table's rank
        self._shape = (batch_size, sum_dims[rank])
        self._device = device

    @property
    def num_bytes(self) -> int:
        """Memory of both directions on this rank, fp32."""
        return 4 * (2 * sum(self._all) + sum(self._own))

    def rehearse(self) -> None:
        """Allocate the memory once, before other ranks wait for this one."""
        torch.empty(self.num_bytes, dtype=torch.uint8, device=self._device)

    def barrier(self) -> None:
        """Wait for all ranks, so that waiting is not timed as communication."""
        dist.barrier()
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def forward(self, pooled: Float[Tensor, "B S"]) -> Float[Tensor, " R"]:
        """Send each rank its samples of this rank's tables; receive this rank's samples of all tables."""
        received = torch.empty(sum(self._all), device=self._device)
        dist.all_to_all_single(received, pooled.reshape(-1), self._all, self._own)
        return received

    def backward(self, gradient: Float[Tensor, " R"]) -> Float[Tensor, "B S"]:
        """Send gradients back; receive those of this rank's tables for the whole batch."""
        received = torch.empty(sum(self._own), device=self._device)
        dist.all_to_all_single(received, gradient, self._own, self._all)
        return received.reshape(self._shape)

    def gradient(self) -> Float[Tensor, " R"]:
        """The gradient of this rank's samples, in place of the layers above."""
        return torch.full((sum(self._all),), GRADIENT, device=self._device)


class RankMeasurer:
    """Measures this rank's shard of each placement.

    Args:
        rank: of this process, and of the placement's device that it measures.
        enter: called with the name of each stage as it begins, so that hangs and failures can be located.
    """

    def __init__(self, setup: TestbedSetup, rank: int, device: torch.device, enter: Callable[[str], None]) -> None:
        self.setup = setup
        self.rank = rank
        self.device = device
        self._enter = enter
        self._runner = ShardRunner(setup, device, enter)

    def measure(self, task: PlacementTask, placement: Placement) -> Float[Tensor, "R 4"] | Infeasible:
        """`[R, 4]` milliseconds of each timed pass and phase on this rank, or the first shard that did not fit."""
        own = task.tables.select(placement.tables_of(self.rank))
        sum_dims = [int(task.tables.dim[placement.tables_of(d)].sum()) for d in range(placement.num_devices)]
        all_to_all = AllToAll(sum_dims, self.setup.batch_size, self.rank, self.device)
        shard, misfit = None, None
        try:
            if len(own):
                shard = self._runner.build(own, task.precision, task.optimizer)
            self._runner.within_memory(all_to_all.rehearse, all_to_all.num_bytes)
        except DoesNotFitError as error:
            misfit = error
        self._enter("exchanging with the other ranks")
        if infeasible := self._agree(misfit, placement.num_devices):
            return infeasible
        all_to_all.barrier()
        passes = [self._pass(shard, all_to_all) for _ in range(self.setup.warmups + self.setup.repeats)]
        return torch.tensor(passes[self.setup.warmups :], dtype=torch.float64).reshape(-1, len(PHASES))

    def _agree(self, misfit: DoesNotFitError | None, num_devices: int) -> Infeasible | None:
        """Share misfits among all ranks; the first one, or None if all shards fit."""
        own_bytes = (0, 0) if misfit is None else (misfit.asked_bytes, misfit.free_bytes)
        own = torch.tensor(own_bytes, dtype=torch.int64, device=self.device)
        gathered = [torch.zeros_like(own) for _ in range(num_devices)]
        dist.all_gather(gathered, own)
        for rank, (asked_bytes, free_bytes) in enumerate(torch.stack(gathered).tolist()):
            if asked_bytes:
                return Infeasible(device=rank, asked_bytes=asked_bytes, free_bytes=free_bytes)
        return None

    def _pass(self, shard: BuiltShard | None, all_to_all: AllToAll) -> tuple[float, float, float, float]:
        """The four phases of one training step, in the order of `PHASES`."""
        pooled, forward_ms = torch.empty(self.setup.batch_size, 0, device=self.device), 0.0
        if shard is not None:
            pooled, forward_ms = self._runner.forward(shard)
        gradient = all_to_all.gradient()
        all_to_all.barrier()
        _, forward_comm_ms = self._runner.clock.communicate(lambda: all_to_all.forward(pooled.detach()))
        all_to_all.barrier()
        own_gradient, backward_comm_ms = self._runner.clock.communicate(lambda: all_to_all.backward(gradient))
        backward_ms = self._runner.backward(pooled, own_gradient) if shard is not None else 0.0
        return forward_ms, forward_comm_ms, backward_comm_ms, backward_ms
