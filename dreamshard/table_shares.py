"""What each table's share of a device's cost and memory is, phase by phase.

A device runs its tables fused, so what it costs is no sum over its tables. It is divided among them:

- Compute, by what the device would save in that phase without each table, scaled so that the shares add up.
- The all-to-all, by the columns that each table- or column-wise shard sends.
- Other collectives, by kind: those of row-wise tables by columns, those of tables on one host by their columns there, and the
  all-reduce of data-parallel copies by the bytes of their gradients.

What is divided is the time that a collective takes, whichever device makes it slow.

What no table of the device has a part in, such as waiting for others, stays apart. Memory is a sum and needs no rule.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dreamshard.costs import DeviceCosts
from dreamshard.load_costs import LoadCosts
from dreamshard.placement import ON_ONE_DEVICE, ON_ONE_HOST, Placement
from dreamshard.shards import GRADIENT_BYTES, Collectives, Shards
from dreamshard.summed_costs import ShardedPredictor, SummedCosts
from dreamshard.tasks import PlacementTask

_FORWARD, _BACKWARD = 0, 1


@dataclass(frozen=True, kw_only=True)
class TableShares:
    """Each table on each device that holds some of it: `P` such pairs, by table and then by device.

    Attributes:
        table: `[P]` number of the task's table.
        device: `[P]`.
        memory_bytes: `[P]` of device memory.
        phases_ms: `[P, 4]` share of each phase; None where no costs are known.
        rest_ms: `[D, 4]` of each device, in which no table has a part; None likewise.
        num_devices: `D`.
    """

    table: Int[Tensor, " P"]
    device: Int[Tensor, " P"]
    memory_bytes: Int[Tensor, " P"]
    phases_ms: Float[Tensor, "P 4"] | None
    rest_ms: Float[Tensor, "D 4"] | None
    num_devices: int

    @property
    def device_bytes(self) -> Int[Tensor, " D"]:
        """Device memory in use."""
        return self.memory_bytes.new_zeros(self.num_devices).index_add_(0, self.device, self.memory_bytes)

    @property
    def device_phases_ms(self) -> Float[Tensor, "D 4"] | None:
        """Each device's phases: its tables' shares and the rest."""
        if self.phases_ms is None or self.rest_ms is None:
            return None
        return self.rest_ms.index_add(0, self.device, self.phases_ms)

    def scaled_to(self, costs: DeviceCosts) -> "TableShares":
        """The same parts of other costs, such as measured ones: `[D]` per phase."""
        phases_ms = costs.phases_ms().double()
        whole = self.device_phases_ms
        if whole is None or self.phases_ms is None or self.rest_ms is None:
            return replace(
                self, phases_ms=self.memory_bytes.new_zeros((len(self.table), 4)).double(), rest_ms=phases_ms
            )
        factor = torch.where(whole > 0, phases_ms / whole.clamp(min=1e-12), 0.0)
        rest_ms = torch.where(whole > 0, self.rest_ms * factor, phases_ms)
        return replace(self, phases_ms=self.phases_ms * factor[self.device], rest_ms=rest_ms)


@torch.no_grad()
def table_shares(task: PlacementTask, placement: Placement, predictor: ShardedPredictor | None) -> TableShares:
    """Divide the predicted cost of each device, and its memory, among its tables.

    Args:
        task: whose tables are placed.
        placement: of the task's tables.
        predictor: of costs; None for memory alone.

    Returns:
        Without costs also where the predictor has none of such shards.
    """
    placed = Shards.of(task, placement)
    summed = None if predictor is None else SummedCosts.of(predictor, task, [placement])
    rest_ms = phases_ms = None
    if summed is not None:
        loads = summed.costs.loads(task, placed).double()
        whole_ms = summed.costs_of(summed.sums(placement)).phases_ms().double()
        phases_ms, rest_ms = whole_ms.new_zeros(len(placed.table), 4), torch.zeros_like(whole_ms)
        compute = _compute_weights(summed.costs, placed, loads)
        for phase, direction in ((0, _FORWARD), (3, _BACKWARD)):
            phases_ms[:, phase], rest_ms[:, phase] = _divided(whole_ms[:, phase], compute[:, direction], placed)
        for phase, direction in ((1, _FORWARD), (2, _BACKWARD)):
            for part_ms, weights in _collective_parts(summed.costs, placed, loads, direction):
                shares_ms, left_ms = _divided(part_ms, weights, placed)
                phases_ms[:, phase] += shares_ms
                rest_ms[:, phase] += left_ms
    return _by_table(placed, phases_ms, rest_ms)


def _compute_weights(costs: LoadCosts, placed: Shards, loads: Float[Tensor, "S L"]) -> Float[Tensor, "S 2"]:
    """What a device would save in compute without each shard; where that is nothing for all of them, their lookups x dims."""
    sums = loads.new_zeros(placed.num_devices, loads.shape[1]).index_add_(0, placed.device, loads)
    counts = torch.bincount(placed.device, minlength=placed.num_devices)
    without = torch.where((counts[placed.device] > 1)[:, None], sums[placed.device] - loads, 0.0)
    now_ms = costs.compute_ms(sums)[placed.device]
    saved = (now_ms - torch.where((counts[placed.device] > 1)[:, None], costs.compute_ms(without), 0.0)).clamp(min=0)
    some = saved.new_zeros(placed.num_devices, 2).index_add_(0, placed.device, saved.double()) > 0
    work = (placed.tables.lookups * placed.tables.dim).double().clamp(min=1)
    return torch.where(some[placed.device], saved.double(), work[:, None].expand(-1, 2))


def _collective_parts(
    costs: LoadCosts, placed: Shards, loads: Float[Tensor, "S L"], direction: int
) -> list[tuple[Float[Tensor, " D"], Float[Tensor, " S"]]]:
    """Milliseconds of each kind of collective on each device, and each shard's part in it."""
    sums = loads.new_zeros(placed.num_devices, loads.shape[1]).index_add_(0, placed.device, loads)
    carried, dims = placed.collectives(), placed.tables.dim.double()
    nothing = replace(
        carried,
        all_to_all_dims=torch.zeros_like(carried.all_to_all_dims),
        row_wise_dims=0,
        host_dims=torch.zeros_like(carried.host_dims),
        all_reduce_bytes=0,
    )

    def milliseconds(others: Collectives) -> Float[Tensor, " D"]:
        return costs.comm_ms(sums[None], [others])[0, :, direction].double()

    base_ms = milliseconds(nothing)
    kinds: list[tuple[Collectives, Bool[Tensor, " S"], Float[Tensor, " S"]]] = [
        (replace(nothing, row_wise_dims=carried.row_wise_dims), placed.is_any("row_wise"), dims),
        (replace(nothing, host_dims=carried.host_dims), placed.is_any(*ON_ONE_HOST), dims),
        (
            replace(nothing, all_reduce_bytes=carried.all_reduce_bytes),
            placed.is_any("data_parallel"),
            GRADIENT_BYTES * placed.tables.rows * dims,
        ),
    ]
    parts = [(base_ms, placed.is_any(*ON_ONE_DEVICE) * dims)]
    return parts + [(milliseconds(others) - base_ms, mine * weights) for others, mine, weights in kinds]


def _divided(
    whole_ms: Float[Tensor, " D"], weights: Float[Tensor, " S"], placed: Shards
) -> tuple[Float[Tensor, " S"], Float[Tensor, " D"]]:
    """Each shard's part of its device's milliseconds, by weight; and what is left where a device has no weight."""
    total = whole_ms.new_zeros(placed.num_devices).index_add_(0, placed.device, weights)
    per_weight = torch.where(total > 0, whole_ms / total.clamp(min=1e-300), 0.0)
    return weights * per_weight[placed.device], torch.where(total > 0, 0.0, whole_ms)


def _by_table(
    placed: Shards, phases_ms: Float[Tensor, "S 4"] | None, rest_ms: Float[Tensor, "D 4"] | None
) -> TableShares:
    """Shards of one table on one device together."""
    pairs, number = torch.unique(placed.table * placed.num_devices + placed.device, return_inverse=True)
    held = placed.device_bytes.new_zeros(len(pairs)).index_add_(0, number, placed.device_bytes)
    if phases_ms is not None:
        phases_ms = phases_ms.new_zeros(len(pairs), 4).index_add_(0, number, phases_ms)
    return TableShares(
        table=pairs // placed.num_devices,
        device=pairs % placed.num_devices,
        memory_bytes=held,
        phases_ms=phases_ms,
        rest_ms=rest_ms,
        num_devices=placed.num_devices,
    )
