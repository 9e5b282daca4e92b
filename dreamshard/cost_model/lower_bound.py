"""How cheap any placement of some tables could be predicted to be: a bound that holds, and what is left above it.

Claim. Let a device `d` hold shards of summed work `W_d[m,p]` (member `m`, phase `p`) and cost, as
`StructuredCostNetwork` says, `compute_d = mean_m sum_p s[p] (launch[m,p] + W_d[m,p] exp(g[m,p](x_d)))` if it holds
anything, plus communication `latency + own v_d + largest max_e v_e + received u_d` with non-negative coefficients and
`v_d = dims_d (D-1)/D`. Let `lo[m,p]` be no more than `g[m,p](x)` for every input `x` that a set of these tables can have.
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

The bound is on the *predicted* cost. It is loose by what interval arithmetic gives away, so the gap is an upper limit of
what a better search could still gain, not an estimate of it.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.cost_model.networks import StructuredCostNetwork

_COUNTS = 24  # numbers of tables, log-spaced, whose intervals are looked at


@torch.no_grad()
def lower_bound_ms(network: StructuredCostNetwork, latents: Float[Tensor, "T L"], num_devices: int) -> float:
    """A cost that no placement of these tables (or shards) is predicted to be below.

    Args:
        network: the cost network that predicts.
        latents: `[T, L]` of the tables.
        num_devices: `D`.
    """
    pairs = 2 * network.members
    scale = network.scale_ms.repeat(network.members) / network.members  # [2M]
    cost_ms = latents[:, :pairs] @ (scale * _least_correction(network, latents).exp())  # [T]
    compute = max(float(cost_ms.sum()) / num_devices, float(cost_ms.max()))
    dims = latents[:, -3]
    widest = max(float(dims.sum()) / num_devices, float(dims.max())) * (num_devices - 1) / num_devices
    latency, _own, largest, _received = (float(value) for value in network.comm_ms.sum(dim=0))
    return compute + latency + largest * widest


def _least_correction(network: StructuredCostNetwork, latents: Float[Tensor, "T L"]) -> Float[Tensor, " M2"]:
    """`lo` of the module's docstring, per member and phase."""
    pairs, num_tables = 2 * network.members, len(latents)
    values = torch.cat([latents[:, :pairs], latents[:, -6:]], dim=1)  # [T, 2M+6]
    ascending = values.sort(dim=0).values.cumsum(dim=0)  # [T, 2M+6]: the n smallest together
    descending = values.sort(dim=0, descending=True).values.cumsum(dim=0)
    edges = torch.logspace(0, _log10(num_tables), _COUNTS).round().long().clamp(1, num_tables).unique()
    firsts, lasts = edges, torch.cat([edges[1:] - 1, edges[-1:]])  # every n lies in one [first, last]
    lasts = torch.maximum(lasts, firsts)
    low, high = ascending[firsts - 1], descending[lasts - 1]  # [C, 2M+6]
    return torch.stack(
        [_least_output(network, low[c], high[c], int(firsts[c]), int(lasts[c])) for c in range(len(firsts))]
    ).amin(dim=0)


def _least_output(
    network: StructuredCostNetwork, low: Float[Tensor, " V"], high: Float[Tensor, " V"], first: int, last: int
) -> Float[Tensor, " M2"]:
    """The least correction of shards of `first` to `last` tables whose sums lie between `low` and `high`."""
    pairs = 2 * network.members

    def inputs(sums: Float[Tensor, " V"], count: int, concentration: float) -> Float[Tensor, "M2 8"]:
        wide, (distinct, dims, lookups) = sums[pairs : pairs + 2].clamp(max=1), 0.5 * (sums[-4:-1] + 1e-3).log()
        shared = torch.stack([0.5 * torch.tensor(count + 1e-3).log() - 1, distinct, dims, lookups, *wide])
        work = 0.5 * (sums[:pairs] + 1e-6).log()
        return torch.cat([work[:, None], torch.full((pairs, 1), 2 * concentration), shared.expand(pairs, -1)], dim=1)

    below, above = inputs(low, first, last**-0.5), inputs(high, last, 1.0)
    centre, radius = (below + above) / 2, (above - below).clamp(min=0) / 2  # [2M, 8]
    weight = network.hidden_weight.reshape(pairs, network.correction_inputs, -1)
    middle = (centre[:, None, :] @ weight).squeeze(1) + network.hidden_bias.reshape(pairs, -1)  # [2M, H]
    spread = (radius[:, None, :] @ weight.abs()).squeeze(1)
    least, most = (middle - spread).relu(), (middle + spread).relu()
    output = network.output_weight.reshape(pairs, -1)
    lowest = (torch.where(output > 0, least, most) * output).sum(dim=1) / network.bound
    return network.bound * lowest.tanh()


def _log10(value: int) -> float:
    return float(torch.tensor(float(value)).log10())
