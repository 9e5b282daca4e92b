"""The roofline of a preset in the form in which placements are searched: latents that add up, and their costs.

A latent is `[*work, *loads]`: the loads of `table_loads`, and before them a table's work, which is the milliseconds of
compute that it adds to a device with an even share of all tables. It has one column per thread group, since the widest table
of a device decides how many threads each row gets. Work orders steps to first order; `compute` is exact.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.cost_model.evaluator import Array, DeviceCommunication, Indices, Loads
from dreamshard.costs import DeviceCosts
from dreamshard.placed_shards import placed_shards
from dreamshard.placement import Placement
from dreamshard.policy.mdp import Episodes
from dreamshard.sharding import ShardedPlacement
from dreamshard.tables import Optimizer, Precision
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.links import all_to_all_s, vector_bytes
from dreamshard.testbeds.accelerators.loads import (
    ABOVE_32,
    ABOVE_64,
    COUNT,
    DIM,
    GROUPS,
    NUM_LOADS,
    placed_loads,
    table_loads,
)
from dreamshard.testbeds.accelerators.placed_kernels import placed_backward_s, placed_forward_s
from dreamshard.testbeds.accelerators.roofline import phase_costs
from dreamshard.testbeds.accelerators.specs import AcceleratorSpec

WORK = slice(0, len(GROUPS))
"""Columns of a table's work beside a widest dim of <= 32, <= 64, above."""
LOADS = slice(len(GROUPS), None)

_WIDTHS = 64  # points of the communication curve
_SPREAD = 1 / 64  # narrowest width of the curve, as a share of all dims on one device
_ONE = 0.5  # a sum of flags above it has one
_STEP = 1.02  # of a width, for the slope of the curve


@dataclass(frozen=True)
class RooflineCosts:
    """Costs of shards of one task by the roofline.

    Attributes:
        spec: figures of the accelerator.
        batch_size: training samples per step.
        precision: of the weights.
        optimizer: fused into the backward pass.
        num_devices: `D`.
        devices_per_host: None for as many as the accelerator's host has.
        share: `[K]` loads of a device with an even share of the task's tables.
        exact: whether `compute` costs shards exactly, or adds up their tables' work.
    """

    spec: AcceleratorSpec
    batch_size: int
    precision: Precision
    optimizer: Optimizer
    num_devices: int
    devices_per_host: int | None
    share: Float[Tensor, " K"]
    exact: bool = True

    @classmethod
    def of(cls, task: PlacementTask, spec: AcceleratorSpec, batch_size: int) -> "RooflineCosts":
        """Costs of a task's tables, or of their column shards."""
        setting = (batch_size, task.precision, task.optimizer)
        share = table_loads(task.tables, *setting).sum(dim=0) / task.num_devices
        return cls(spec, *setting, task.num_devices, task.devices_per_host, share)

    def latents(self, task: PlacementTask) -> Float[Tensor, "T L"]:
        """`[*work, *loads]` of each table."""
        if not task.precision_of:
            return self.with_work(table_loads(task.tables, self.batch_size, self.precision, self.optimizer))
        whole = ShardedPlacement.of(
            Placement(torch.zeros(len(task.tables), dtype=torch.int64), task.num_devices), task.tables
        )
        return self.with_work(placed_loads(task, placed_shards(task, whole), self.batch_size)[:, :NUM_LOADS])

    def with_work(self, loads: Float[Tensor, "T K"]) -> Float[Tensor, "T L"]:
        """The loads, and before them the work."""
        both = torch.cat([self.share[None], self.share + loads])  # [1 + T, K]
        widened = torch.cat([self._with_widest(both, group) for group in range(len(GROUPS))])
        ms = self.compute_ms(widened).reshape(len(GROUPS), len(both), 2)
        work = (ms[:, 1:] - ms[:, :1]).sum(dim=-1).clamp(min=0).T  # [T, G]
        return torch.cat([work, loads], dim=1).float()

    def episodes(self, task: PlacementTask) -> Episodes:
        """One episode, in descending cost of single tables; there is no policy, so the latents stand for its features."""
        latents = self.latents(task)
        single_ms = self.compute_ms(latents[:, LOADS].double()).sum(dim=-1).float()  # [T]
        return Episodes.without_policy(task, latents, single_ms)

    def device_costs(self, sums: Float[Tensor, "*B D L"]) -> DeviceCosts:
        """Milliseconds per phase and device of summed latents."""
        return phase_costs(sums[..., LOADS].double().clamp(min=0), self.batch_size, self.spec, self.devices_per_host)

    def overall_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B"]:
        """The slowest device's sum of phases."""
        return self.device_costs(sums).overall_ms().float()

    def evaluator(self) -> "RooflineEvaluator":
        """The same for the small steps of a search."""
        return RooflineEvaluator(self)

    @staticmethod
    def _with_widest(loads: Float[Tensor, "N K"], group: int) -> Float[Tensor, "N K"]:
        """The loads as if the widest table needed this group of threads."""
        widened = loads.clone()
        widened[:, ABOVE_32], widened[:, ABOVE_64] = float(group > 0), float(group > 1)
        return widened

    def compute_ms(self, loads: Float[Tensor, "N K"]) -> Float[Tensor, "N 2"]:
        """Forward and backward compute of shards; one device exchanges nothing."""
        if loads.shape[1] > NUM_LOADS:
            seconds = [call(loads, self.batch_size, self.spec) for call in (placed_forward_s, placed_backward_s)]
            return 1e3 * torch.where(loads[:, COUNT, None] > _ONE, torch.stack(seconds, dim=1), 0.0)
        costs = phase_costs(loads[:, None], self.batch_size, self.spec, self.devices_per_host)
        return torch.cat([costs.forward_compute_ms, costs.backward_compute_ms], dim=1)


class RooflineEvaluator:
    """`RooflineCosts` as a `ShardEvaluator`."""

    step_units = 3.0

    def __init__(self, costs: RooflineCosts) -> None:
        self.costs = costs
        dims = float(costs.share[DIM]) * costs.num_devices
        first = max(dims / costs.num_devices * _SPREAD, 1.0)
        self._widths = np.concatenate([[0.0], np.geomspace(first, max(dims, 2 * first), _WIDTHS)])
        senders = torch.from_numpy(self._widths)[:, None].expand(-1, costs.num_devices)  # [G, D]
        sent_bytes = vector_bytes(senders, costs.batch_size)
        self._both_ms = 2e3 * all_to_all_s(sent_bytes, costs.spec, costs.devices_per_host)[:, 0].numpy()
        balanced = dims / costs.num_devices
        self._ms_per_dim = max(self._slope(balanced), 0.0)

    def empty(self, batch: int, num_devices: int) -> Loads:
        """See `ShardEvaluator`."""
        return Loads(
            np.zeros((batch, num_devices, len(GROUPS) + len(self.costs.share)), np.float32),
            np.zeros((batch, num_devices), np.float32),
            np.zeros((batch, num_devices), np.float32),
            np.zeros((batch, num_devices, len(GROUPS)), np.float32),
            np.float32(self._ms_per_dim),
        )

    def compute(self, sums: Array) -> tuple[Array, Array, Array]:
        """See `ShardEvaluator`; each unit of the work that counts is a millisecond."""
        rates = np.eye(len(GROUPS), dtype=np.float32)[_group(sums)]
        if not self.costs.exact:
            return (rates * sums[:, WORK]).sum(axis=1), np.zeros(len(sums), np.float32), rates
        loads = torch.from_numpy(sums[:, LOADS]).double().clamp(min=0)
        forward, backward = self.costs.compute_ms(loads).float().numpy().T
        return forward, backward, rates

    def with_table(self, loads: Loads, latent: Array) -> tuple[Array, Array]:
        """By the work beside whichever is wider, the table or the device's widest."""
        group = np.maximum(_group(loads.sums), _group(latent)[:, None])  # [B, D]
        work = loads.sums[..., WORK] + latent[:, None, WORK]  # [B, D, G]
        compute = np.take_along_axis(work, group[..., None], axis=-1)[..., 0]
        return compute, loads.comm_ms + loads.ms_per_dim * latent[:, LOADS.start + DIM, None]

    def widest_comm_ms(self, sums: Array, loads: Loads) -> Array:
        """See `ShardEvaluator`."""
        comm: Array = loads.ms_per_dim * self.table_width(sums)
        return comm

    def table_width(self, latents: Array) -> Array:
        """Dims."""
        width: Array = latents[:, LOADS.start + DIM]
        return width

    def communication(self, sums: Array) -> DeviceCommunication:
        """The tangent of the all-to-alls' cost at the present largest width."""
        width = self.table_width(sums)
        widest = float(width.max())
        slope = self._slope(widest)
        constant = float(np.interp(widest, self._widths, self._both_ms)) - slope * widest
        return DeviceCommunication(np.full(len(sums), constant, np.float32), width, slope, 0.0)

    def _slope(self, width: float) -> float:
        """Milliseconds per dim around a width."""
        low, high = np.interp([width / _STEP, width * _STEP], self._widths, self._both_ms)
        return float(high - low) / max(width * (_STEP - 1 / _STEP), 1e-9)


def _group(latents: Array) -> Indices:
    """The group of threads that the widest table of shards of latents `[..., L]` needs."""
    above_32, above_64 = (latents[..., LOADS.start + column] > _ONE for column in (ABOVE_32, ABOVE_64))
    return above_32.astype(np.int64) + above_64
