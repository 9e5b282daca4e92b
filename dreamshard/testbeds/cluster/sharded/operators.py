"""The operators of one rank's shards, whatever ways its tables are sharded, on their real lookups.

As TorchRec does: a block of rows gets the lookups of its rows, numbered from its first; a data-parallel copy gets those of
the rank's own samples, and its backward pass makes a dense gradient; a dense optimizer applies the sum of all ranks'.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.tables import BYTES_PER_ROW, BYTES_PER_WEIGHT, Optimizer
from dreamshard.testbeds.cluster.sharded.job import RankShard, Route, ShardingJob, tables_of
from dreamshard.testbeds.fused_op import (
    INDEX_DTYPE,
    LEARNING_RATE,
    WeightArena,
    build_operator,
    require_fbgemm,
    shard_lookups,
)
from dreamshard.testbeds.shard_runner import INT32_LIMIT, BuiltShard, ShardRunner
from dreamshard.workloads import Lookups

EPSILON = 1e-8  # of the Adagrads


@dataclass
class RankOperator:
    """One operator of shards that are exchanged alike, of one precision and cached alike.

    Attributes:
        shards: in the order of its columns.
        run: looks up the whole batch, or the rank's samples where they are copies.
        weights: `[rows, dim]` of each shard, which change with each step.
        num_lookups: of each shard.
    """

    route: Route
    shards: tuple[RankShard, ...]
    run: BuiltShard
    weights: tuple[Tensor, ...]
    num_lookups: tuple[int, ...]

    def columns(self, gradient: Float[Tensor, "B W"]) -> Float[Tensor, "B S"]:
        """Its own columns of the matrix of its route."""
        if self._fills(gradient.shape[1]):
            return gradient.contiguous()
        return torch.cat([gradient[:, shard.offset : shard.offset + shard.dim] for shard in self.shards], dim=1)

    def put(
        self, pooled: Float[Tensor, "B S"], matrix: Float[Tensor, "B W"] | None, width: int
    ) -> Float[Tensor, "B W"]:
        """The matrix of its route, of so many columns, with its own columns."""
        if self._fills(width):
            return pooled
        if matrix is None:
            matrix = pooled.new_zeros(len(pooled), width)
        for shard, part in zip(self.shards, pooled.split([shard.dim for shard in self.shards], dim=1), strict=True):
            matrix[:, shard.offset : shard.offset + shard.dim] = part
        return matrix

    def _fills(self, width: int) -> bool:
        return sum(shard.dim for shard in self.shards) == width


@dataclass
class DenseOptimizer:
    """Applies summed gradients of data-parallel tables; state starts at zero.

    Attributes:
        weights: `[W]` of all tables, flat, with their gradient.
        shapes: rows and columns of each.
    """

    weights: torch.nn.Parameter
    shapes: tuple[tuple[int, int], ...]
    optimizer: Optimizer
    _state: list[Tensor] = field(default_factory=list)

    @property
    def gradient(self) -> Float[Tensor, " W"]:
        """Of the last backward pass.

        Raises:
            RuntimeError: there was none.
        """
        if self.weights.grad is None:
            raise RuntimeError("data-parallel tables have no gradient before a backward pass; report this as a defect")
        return self.weights.grad

    @torch.no_grad()
    def step(self) -> Tensor:
        """One step of plain SGD or an Adagrad."""
        gradient = self.gradient
        if self.optimizer == "sgd":
            return self.weights.add_(gradient, alpha=-LEARNING_RATE)
        sizes = [rows * dim for rows, dim in self.shapes]
        parts = zip(self.weights.split(sizes), gradient.split(sizes), self.shapes, strict=True)
        for i, (weight, change, shape) in enumerate(parts):
            square = change.reshape(shape).square()
            if self.optimizer == "rowwise_adagrad":
                square = square.mean(dim=1, keepdim=True)
            if len(self._state) == i:
                self._state.append(torch.zeros_like(square))
            self._state[i].add_(square)
            scale = self._state[i].sqrt().add_(EPSILON)
            weight.reshape(shape).sub_(LEARNING_RATE * change.reshape(shape) / scale)
        return self.weights


class RankOperators:
    """All operators of a rank's shards.

    Args:
        job: of the rank.
        runner: of its device.
        samples: of the batch, the rank's.

    Raises:
        ValueError: fbgemm has no such operator, or lookups are missing.
    """

    def __init__(self, job: ShardingJob, runner: ShardRunner, samples: slice) -> None:
        self.operators: list[RankOperator] = []
        self.dense: DenseOptimizer | None = None
        self._optimizer = job.optimizer
        self._runner = runner
        self._samples = samples

        def alike(shard: RankShard) -> tuple[str, str, float]:
            return shard.route, shard.precision, shard.cached_share or 0.0

        kinds = [list(shards) for _, shards in groupby(sorted(job.shards, key=alike), key=alike)]
        whole = runner.read([shard.table for shard in job.shards], [shard.table_rows for shard in job.shards])
        lookups = dict(zip(job.names, whole, strict=True))
        arenas = runner.arena.divided([sum(map(_arena_bytes, shards)) for shards in kinds])
        for shards, arena in zip(kinds, arenas, strict=True):
            self.operators.append(self._build(shards, [lookups[shard.name] for shard in shards], arena))

    def indices_by_sample_rank(self, counts: Sequence[int]) -> list[int]:
        """How many indices and lengths each rank sends here, given the number of its samples."""
        exchanged = [op for op in self.operators if op.route != "copies"]
        num_lookups = sum(sum(op.num_lookups) for op in exchanged)
        num_shards = sum(len(op.shards) for op in exchanged)
        batch = sum(counts)
        return [num_lookups * count // batch + num_shards * count for count in counts]

    def rehearse(self) -> None:
        """One untimed step of each operator, which proves that memory suffices."""
        for operator in self.operators:
            pooled = operator.run()
            pooled.backward(torch.zeros_like(pooled))
        if self._runner.device.type == "cuda":
            torch.cuda.synchronize(self._runner.device)

    def _build(self, shards: Sequence[RankShard], whole: Sequence[Lookups], arena: WeightArena) -> RankOperator:
        device, route = self._runner.device, shards[0].route
        own = [
            _of_samples(lookups, self._samples)
            if route == "copies"
            else lookups
            if shard.rows == shard.table_rows
            else lookups.of_rows(shard.first_row, shard.first_row + shard.rows)
            for shard, lookups in zip(shards, whole, strict=True)
        ]
        counts = tuple(len(lookups.indices) for lookups in own)
        batch = self._samples.stop - self._samples.start if route == "copies" else self._runner.setup.batch_size
        large = max(sum(shard.rows for shard in shards), sum(counts)) > INT32_LIMIT
        joined = shard_lookups(own, batch, torch.int64 if large else INDEX_DTYPE[device.type])
        indices, offsets = joined.indices.to(device), joined.offsets.to(device)
        if route == "copies":
            operator = _dense_operator(shards, device)
            shapes = tuple((shard.rows, shard.dim) for shard in shards)
            weights: torch.nn.Parameter = operator.weights  # type: ignore[assignment]
            self.dense = DenseOptimizer(weights, shapes, self._optimizer)
            run: BuiltShard = partial(operator, indices.long(), offsets.long())
            views = weights.detach().split([rows * dim for rows, dim in shapes])
            by_table = tuple(view.reshape(shape) for view, shape in zip(views, shapes, strict=True))
        else:
            first = shards[0]
            operator = build_operator(
                tables_of(shards), first.precision, self._optimizer, device, arena, first.cached_share
            )
            run = partial(operator, indices, offsets)
            split: Callable[[], list[Tensor]] = operator.split_embedding_weights  # type: ignore[assignment]
            by_table = tuple(split())
        return RankOperator(route, tuple(shards), run, by_table, counts)


def asked_bytes(job: ShardingJob, batch_size: int) -> int:
    """Memory of a rank's operators: shards, pooled vectors and their gradients."""
    return job.device_bytes + 2 * 4 * batch_size * sum(shard.dim for shard in job.shards)


def _arena_bytes(shard: RankShard) -> int:
    """Of a shard's weights, where they are in the arena."""
    if shard.route == "copies" or shard.cached_share is not None:
        return 0
    return shard.rows * (shard.dim * BYTES_PER_WEIGHT[shard.precision] + BYTES_PER_ROW[shard.precision])


def _of_samples(lookups: Lookups, samples: slice) -> Lookups:
    """The lookups of some samples of the batch."""
    offsets = lookups.offsets[samples.start : samples.stop + 1]
    return Lookups(lookups.indices[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])


def _dense_operator(shards: Sequence[RankShard], device: torch.device) -> torch.nn.Module:
    """fbgemm's operator whose backward pass makes a dense gradient."""
    require_fbgemm()
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import DenseTableBatchedEmbeddingBagsCodegen

    shapes = [(shard.rows, shard.dim) for shard in shards]
    operator: torch.nn.Module = DenseTableBatchedEmbeddingBagsCodegen(shapes, use_cpu=device.type == "cpu")
    return operator.to(device)
