"""A cost that no placement of given tables is predicted to be below, for the structured network.

Claim. Let a device `d` hold shards of summed work `W_d[m,p]` (member `m`, phase `p`). `StructuredCostNetwork` predicts
`compute_d = mean_m sum_p s[p] (launch[m,p] + W_d[m,p] exp(g[m,p](x_d)))` if it holds anything, plus communication
`latency + own v_d + largest max_e v_e + received u_d` with non-negative coefficients and `v_d = dims_d (D-1)/D`. Let
`lo[m,p]` be no more than `g[m,p](x)` for every input `x` that a set of these tables can have.
Then every placement's overall cost is at least

    max( sum_t c_t / D, max_t c_t ) + latency + largest (D-1)/D max( sum_t dims_t / D, max_t dims_t )

with `c_t = mean_m sum_p s[p] w_t[m,p] exp(lo[m,p])`.

Proof. `W_d` is the sum of its tables' works and launches are not negative, so `compute_d >= sum of c_t over its tables`.
The slowest device costs at least the average over devices, `sum_t c_t / D`, and at least what any single table costs
where it is, `c_t`. The widest device has at least the average dims and at least the dims of any table. Communication other
than the widest's share is not negative apart from the latency, which every device pays. The slowest device pays compute
and the widest's share at once, so the two bounds add. `lo` comes from interval arithmetic: with `n` tables, each of a
shard's sums lies between the `n` smallest and the `n` largest values of the task, and its concentration between
`1/sqrt(n)` (Cauchy-Schwarz) and 1; a linear layer, ReLU and tanh map intervals to intervals that contain all images; and
the minimum over all `n` is taken. QED.

The bound is on the *predicted* cost. Interval arithmetic makes it loose, so the gap to it is an upper limit of what a
better search could still gain, not an estimate.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.cost_model.structured_formula import BOUND, StructuredWeights, shared_inputs, work_input

_COUNTS = 24  # intervals of numbers of tables, log-spaced


@torch.no_grad()
def structured_lower_bound_ms(weights: StructuredWeights, latents: Float[Tensor, "T L"], num_devices: int) -> float:
    """The bound of the module's docstring, for tables or shards of these latents."""
    layout = weights.layout
    scale = weights.scale_ms.repeat(layout.members) / layout.members  # [2M]
    cost_ms = latents[:, layout.work] @ (scale * _least_correction(weights, latents).exp())  # [T]
    compute = max(float(cost_ms.sum()) / num_devices, float(cost_ms.max()))
    dims = latents[:, layout.dims]
    widest = max(float(dims.sum()) / num_devices, float(dims.max())) * (num_devices - 1) / num_devices
    latency, _own, largest, _received = (float(value) for value in weights.comm_ms.sum(dim=0))
    return compute + latency + largest * widest


def _least_correction(weights: StructuredWeights, latents: Float[Tensor, "T L"]) -> Float[Tensor, " M2"]:
    """`lo` of the module's docstring, per pair."""
    num_tables = len(latents)
    ascending = latents.sort(dim=0).values.cumsum(dim=0)  # [T, L]: the n smallest values of each column together
    descending = latents.sort(dim=0, descending=True).values.cumsum(dim=0)
    edges = torch.logspace(0, math.log10(num_tables), _COUNTS).round().long().clamp(1, num_tables).unique()
    firsts, lasts = edges, torch.cat([edges[1:] - 1, edges[-1:]])  # every n is in one [first, last]
    lasts = torch.maximum(lasts, firsts)
    low, high = ascending[firsts - 1], descending[lasts - 1]  # [C, L]
    least = [_least_output(weights, low[c], high[c], int(last)) for c, last in enumerate(lasts)]
    return torch.stack(least).amin(dim=0)


def _least_output(
    weights: StructuredWeights, low: Float[Tensor, " L"], high: Float[Tensor, " L"], most_tables: int
) -> Float[Tensor, " M2"]:
    """The least correction of shards of at most `most_tables` tables whose sums are between `low` and `high`."""
    layout = weights.layout

    def inputs(sums: Float[Tensor, " L"], concentration: float) -> Float[Tensor, "M2 X"]:
        work = work_input(sums[layout.work])  # [2M]
        own = torch.stack([work, torch.full_like(work, 2 * concentration)], dim=1)
        return torch.cat([own, shared_inputs(sums).expand(layout.pairs, -1)], dim=1)

    below, above = inputs(low, most_tables**-0.5), inputs(high, 1.0)
    centre, radius = (below + above) / 2, (above - below).clamp(min=0) / 2  # [2M, X]
    middle = (centre[:, None, :] @ weights.hidden_weight).squeeze(1) + weights.hidden_bias  # [2M, H]
    spread = (radius[:, None, :] @ weights.hidden_weight.abs()).squeeze(1)
    least, most = (middle - spread).relu(), (middle + spread).relu()
    output = weights.output_weight
    lowest = (torch.where(output > 0, least, most) * output).sum(dim=1) / BOUND
    return BOUND * lowest.tanh()
