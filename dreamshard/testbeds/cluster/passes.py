"""One rank's share of measuring a placement: its operator, and the exchange with the other ranks.

The same code runs on CPU (gloo) and CUDA (NCCL); only the clock differs.
"""

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

    Device `d` holds the whole batch for its own tables, `[B, S_d]` with `S_d` the sum of their dims; afterwards rank
    `r` holds its `b_r` samples of all tables. The first ranks take a sample more where D does not divide the batch.
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
        """What both directions hold at once on this rank, fp32."""
        return 4 * (2 * sum(self._all) + sum(self._own))

    def barrier(self) -> None:
        """Wait until every rank is here, so that waiting is not counted as communication."""
        dist.barrier()
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def forward(self, pooled: Float[Tensor, "B S"]) -> Float[Tensor, " R"]:
        """Give each rank its samples of this rank's tables; get this rank's samples of all tables."""
        received = torch.empty(sum(self._all), device=self._device)
        dist.all_to_all_single(received, pooled.reshape(-1), self._all, self._own)
        return received

    def backward(self, gradient: Float[Tensor, " R"]) -> Float[Tensor, "B S"]:
        """The way back: gradients of this rank's tables for the whole batch."""
        received = torch.empty(sum(self._own), device=self._device)
        dist.all_to_all_single(received, gradient, self._own, self._all)
        return received.reshape(self._shape)

    def gradient(self) -> Float[Tensor, " R"]:
        """What the layers above would hand back for this rank's samples."""
        return torch.full((sum(self._all),), GRADIENT, device=self._device)


class RankMeasurer:
    """Measures this rank's shard of placement after placement; keeps weights and lookups from one to the next.

    Args:
        setup: of the testbed.
        rank: of this process, and the device of the placement that it measures.
        device: where its tables lie.
        enter: told the name of each stage when it begins, so that a hang or a failure can be located.
    """

    def __init__(self, setup: TestbedSetup, rank: int, device: torch.device, enter: Callable[[str], None]) -> None:
        self.setup = setup
        self.rank = rank
        self.device = device
        self._enter = enter
        self._bench = ShardRunner(setup, device, enter)

    def measure(self, task: PlacementTask, placement: Placement) -> Float[Tensor, "R 4"] | Infeasible:
        """`[R, 4]` milliseconds of each timed pass and phase on this rank, or which rank's shard did not fit."""
        own = task.tables.select(placement.tables_of(self.rank))
        sum_dims = [int(task.tables.dim[placement.tables_of(d)].sum()) for d in range(placement.num_devices)]
        exchange = AllToAll(sum_dims, self.setup.batch_size, self.rank, self.device)
        shard, misfit = None, None
        try:
            if len(own):
                shard = self._bench.build(own, task.precision, task.optimizer)
            self._bench.within_memory(lambda: self._rehearse(exchange), exchange.num_bytes)
        except DoesNotFitError as error:
            misfit = error
        self._enter("exchanging with the other ranks")
        infeasible = self._agree(misfit, placement.num_devices)
        if infeasible is not None:
            return infeasible
        exchange.barrier()
        passes = [self._pass(shard, exchange) for _ in range(self.setup.warmups + self.setup.repeats)]
        return torch.tensor(passes[self.setup.warmups :], dtype=torch.float64).reshape(-1, len(PHASES))

    def _rehearse(self, exchange: AllToAll) -> None:
        """Take the memory of an exchange once and give it back, before other ranks wait for it."""
        torch.empty(exchange.num_bytes, dtype=torch.uint8, device=self.device)

    def _agree(self, misfit: DoesNotFitError | None, num_devices: int) -> Infeasible | None:
        """The first rank whose shard does not fit, which all ranks learn of; None if all fit."""
        asked = (0, 0) if misfit is None else (misfit.asked_bytes, misfit.free_bytes)
        own = torch.tensor(asked, dtype=torch.int64, device=self.device)
        found = [torch.zeros_like(own) for _ in range(num_devices)]
        dist.all_gather(found, own)
        for rank, (asked_bytes, free_bytes) in enumerate(torch.stack(found).tolist()):
            if asked_bytes:
                return Infeasible(device=rank, asked_bytes=asked_bytes, free_bytes=free_bytes)
        return None

    def _pass(self, shard: BuiltShard | None, exchange: AllToAll) -> tuple[float, float, float, float]:
        """The four phases of one training step, in the order of `PHASES`."""
        pooled, forward_ms = torch.empty(self.setup.batch_size, 0, device=self.device), 0.0
        if shard is not None:
            pooled, forward_ms = self._bench.forward(shard)
        gradient = exchange.gradient()
        exchange.barrier()
        _, forward_comm_ms = self._bench.clock.communicate(lambda: exchange.forward(pooled.detach()))
        exchange.barrier()
        own_gradient, backward_comm_ms = self._bench.clock.communicate(lambda: exchange.backward(gradient))
        backward_ms = self._bench.backward(pooled, own_gradient) if shard is not None else 0.0
        return forward_ms, forward_comm_ms, backward_comm_ms, backward_ms
