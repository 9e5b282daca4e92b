"""The estimated MDP: place one table after another; the cost network predicts the cost.

State per device: the sum of its tables' latents, its predicted costs, and the memory used. Sums are incremental: a step
adds one latent to one device and evaluates that device. No hardware is touched. All functions take `B` episodes of the
same number of tables and devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.cost_model import CostNetwork, Normaliser
from dreamshard.cost_model.evaluator import Array, Indices, Loads, ShardEvaluator
from dreamshard.cost_model.paper import PaperEvaluator
from dreamshard.legality import allowed_devices
from dreamshard.tasks import PlacementTask

_NO_ROOM = np.iinfo(np.int64).min
_LEAST_REFERENCE_MS = 1e-3  # a microsecond: less than any operator takes
OWN_SHARE = np.float32(0.1)
"""Weight of a device's own cost beside the overall cost, in `cost_if_placed_ms`."""


@dataclass(frozen=True)
class Episodes:
    """`B` episodes before their first step; tables in the order in which they are placed.

    Attributes:
        order: `[B, T]` index of each table in its task: descending predicted cost on the first of empty devices.
        features: `[B, T, F]` normalised.
        latents: `[B, T, L]` of the cost network.
        table_bytes: `[B, T]`.
        single_ms: `[B, T]` predicted cost of each table alone on one device.
        reference_ms: `[B]` sum of the magnitudes of `single_ms` over the number of devices, above 0. The policy
            `lookahead` sees costs relative to it, so that they mean the same in a small task and in a large one.
        num_devices: `D`.
        capacity_bytes: `[D]` room for tables on each device; 0 where none may be.
        allowed: `[B, T, D]` devices that may hold each table.
    """

    order: Int[Tensor, "B T"]
    features: Float[Tensor, "B T F"]
    latents: Float[Tensor, "B T L"]
    table_bytes: Int[Tensor, "B T"]
    single_ms: Float[Tensor, "B T"]
    reference_ms: Float[Tensor, " B"]
    num_devices: int
    capacity_bytes: Indices
    allowed: Bool[Tensor, "B T D"]

    @classmethod
    def without_policy(
        cls, task: PlacementTask, latents: Float[Tensor, "T L"], single_ms: Float[Tensor, " T"]
    ) -> "Episodes":
        """One episode in descending single cost; there is no policy, so the latents stand for its features."""
        order = torch.argsort(single_ms, descending=True, stable=True)
        ordered = latents[order][None]
        return cls(
            order[None],
            ordered,
            ordered,
            task.table_bytes[order][None],
            single_ms[order][None],
            _reference_ms(single_ms[None], task.num_devices),
            task.num_devices,
            task.capacity_bytes.numpy(),
            allowed_devices(task)[order][None],
        )

    def repeat(self, times: int) -> "Episodes":
        """Each episode `times` times, side by side."""
        names = ("order", "features", "latents", "table_bytes", "single_ms", "reference_ms", "allowed")
        return replace(self, **{name: getattr(self, name).repeat_interleave(times, dim=0) for name in names})


@dataclass
class State:
    """Episodes between two steps; `step` changes it in place, since a copy would cost more than the step.

    Attributes:
        loads: `[B, D]` devices.
        used_bytes: `[B, D]`.
        slowest_ms: `[B, 1]` compute of the slowest device.
        widest_ms: `[B, 1]` communication of the widest one.
        episode: `[B]` 0..B-1.
    """

    loads: Loads
    used_bytes: Indices
    slowest_ms: Array
    widest_ms: Array
    episode: Indices


@torch.no_grad()
def episodes_of(tasks: Sequence[PlacementTask], network: CostNetwork, normaliser: Normaliser) -> Episodes:
    """One episode per task.

    Raises:
        ValueError: the tasks differ in their number of tables, of devices, or in memory.
    """
    shapes = {(len(task.tables), tuple(task.capacity_bytes.tolist())) for task in tasks}
    if len(shapes) != 1:
        raise ValueError(
            f"tasks of different shape {sorted(shapes)} (tables, bytes per device) cannot share one batch of episodes; "
            "roll them out shape by shape"
        )
    normalised = torch.stack([normaliser(task.tables) for task in tasks])  # [B, T, F]
    latents = network.encode(normalised, network.ratios(tasks))  # [B, T, L]
    single_ms = network.single_ms(latents)  # [B, T]
    num_devices, capacity_bytes = tasks[0].num_devices, tasks[0].capacity_bytes.numpy()
    order = torch.argsort(network.first_ms(latents, num_devices), dim=1, descending=True, stable=True)  # [B, T]
    table_bytes = torch.stack([task.table_bytes for task in tasks])
    reference_ms = _reference_ms(single_ms, num_devices)
    normalised, latents = (values.gather(1, order[:, :, None].expand_as(values)) for values in (normalised, latents))
    table_bytes, single_ms = (values.gather(1, order) for values in (table_bytes, single_ms))
    allowed = torch.stack([allowed_devices(task)[by_cost] for task, by_cost in zip(tasks, order, strict=True)])
    return Episodes(
        order, normalised, latents, table_bytes, single_ms, reference_ms, num_devices, capacity_bytes, allowed
    )


def _reference_ms(single_ms: Float[Tensor, "B T"], num_devices: int) -> Float[Tensor, " B"]:
    """See `Episodes`; an untrained network may predict negative costs, whose sum could be nearly 0."""
    return (single_ms.abs().sum(dim=1) / num_devices).clamp(min=_LEAST_REFERENCE_MS)


def start(evaluator: ShardEvaluator, batch: int, num_devices: int) -> State:
    """All devices empty."""
    loads = evaluator.empty(batch, num_devices)
    return State(
        loads,
        np.zeros((batch, num_devices), np.int64),
        loads.compute_ms.max(axis=1, keepdims=True),
        loads.comm_ms.max(axis=1, keepdims=True),
        np.arange(batch),
    )


def legal_devices(
    used_bytes: Indices, table_bytes: Indices, capacity_bytes: Indices, allowed: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """`[B, D]` devices, of `[D]` bytes, with room for tables of `[B]` bytes: the mask of sampling, loss and greedy choice.

    `allowed` `[B, D]` may hold them. If none of these has room, the one with the most is legal, so that a softmax over legal
    devices stays defined; such an episode ends over capacity, and `Rollout.feasible` is false.
    """
    room = np.where(allowed, capacity_bytes - used_bytes, _NO_ROOM)  # [B, D]
    fits = room >= table_bytes[:, None]
    if fits.all():
        return fits
    stuck = ~fits.any(axis=1, keepdims=True)  # [B, 1]
    result: NDArray[np.bool_] = fits | (stuck & (room == room.max(axis=1, keepdims=True)))
    return result


def step(
    evaluator: ShardEvaluator, state: State, latent: Array, table_bytes: Indices, device: Indices
) -> tuple[Array, Array]:
    """Put one table per episode, of `latent` `[B, L]` and `table_bytes` `[B]`, on `device` `[B]`.

    Returns:
        Forward and backward compute of these devices, `[B]` each.
    """
    changed, loads = (state.episode, device), state.loads
    loads.sums[changed] += latent
    state.used_bytes[changed] += table_bytes
    sums = loads.sums[changed]
    forward, backward, loads.rates[changed] = evaluator.compute(sums)
    loads.compute_ms[changed] = compute_ms = forward + backward
    loads.comm_ms[changed] = comm_ms = evaluator.widest_comm_ms(sums, loads)
    np.maximum(state.slowest_ms, compute_ms[:, None], out=state.slowest_ms)
    np.maximum(state.widest_ms, comm_ms[:, None], out=state.widest_ms)
    return forward, backward


def cost_if_placed_ms(evaluator: ShardEvaluator, state: State, latent: Array) -> Array:
    """`[B, D]` predicted cost of placing the table of `latent` `[B, L]` on each device.

    The overall cost with the table, plus a tenth of the device's own cost as if it were the widest. The overall cost alone
    does not distinguish devices that are critical neither for compute nor for the all-to-all. The own cost alone lets the
    most compute and the most dims end on different devices, and everyone waits for the sum of both.
    """
    compute, comm = evaluator.with_table(state.loads, latent)  # [B, D] each
    if isinstance(evaluator, PaperEvaluator):
        cost = evaluator.overall_with_table(state.loads.sums, latent)
    else:
        cost = np.maximum(compute, state.slowest_ms) + np.maximum(comm, state.widest_ms)
    compute += comm
    compute *= OWN_SHARE
    cost += compute
    return cost
