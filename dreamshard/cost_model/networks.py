"""Networks that predict what a placement costs from its tables.

Both kinds share one shape, so that the MDP can keep sums instead of recomputing them: `encode` turns each table into a
latent vector that is *added* over the tables of a device, `phases_ms` turns each device's sum into milliseconds. An
empty device has the zero vector.

- `PaperCostNetwork`: DreamShard's (arXiv 2210.02023, section 3.1 and appendix B.1), on its 21 features.
- `StructuredCostNetwork`: positive work per table and phase, summed, times a bounded correction for what fusion
  changes.
"""

import math
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy import optimize
from torch import Tensor, nn

from dreamshard.cost_model.features import FEATURES, NUM_PAPER_FEATURES, Normaliser

Architecture = Literal["structured", "paper"]

_COMPUTE = (0, 3)  # of PHASES: forward_compute, backward_compute
_COMM = (1, 2)  # forward_comm, backward_comm
_WIDE = (32.5, 64.5)  # dims above which the fused operator gives a row 16 and 32 threads
_OUTLIER = 2.5  # medians of the absolute error, above which a sample of communication counts less


def mlp(sizes: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class CostNetwork(nn.Module):
    """What the MDP, the search and training ask of a cost network; see the module's docstring."""

    architecture: Architecture
    latent_size: int

    def encode(self, normalised: Float[Tensor, "*B F"]) -> Float[Tensor, "*B L"]:
        """Latent vector of each table, to be summed over the tables of a device."""
        raise AssertionError("a subclass says how")

    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        """Milliseconds per device and phase, in the order of `dreamshard.costs.PHASES`."""
        raise AssertionError("a subclass says how")

    def overall_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B"]:
        """The slowest device's sum of phases."""
        return self.phases_ms(sums).sum(dim=-1).max(dim=-1).values


class PaperCostNetwork(CostNetwork):
    """Table MLP 21-128-32, sum, heads 32-64-1; max over devices of the sums, then 32-64-1 for the overall cost.

    The paper predicts no forward communication (its measurement contains the waiting for other devices); here both
    directions move the same bytes, so the one communication head stands for both.
    """

    architecture: Architecture = "paper"
    latent_size = 32

    def __init__(self) -> None:
        super().__init__()
        self.table = mlp((NUM_PAPER_FEATURES, 128, self.latent_size))
        self.heads = nn.ModuleList(mlp((self.latent_size, 64, 1)) for _ in range(3))
        self.overall = mlp((self.latent_size, 64, 1))

    def encode(self, normalised: Float[Tensor, "*B F"]) -> Float[Tensor, "*B L"]:
        """See `CostNetwork.encode`."""
        latent: Tensor = self.table(normalised[..., :NUM_PAPER_FEATURES])
        return latent

    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        """See `CostNetwork.phases_ms`."""
        forward, comm, backward = (head(sums).squeeze(-1) for head in self.heads)  # [*B, D] each
        return torch.stack([forward, comm, comm, backward], dim=-1)

    def overall_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B"]:
        """The overall head on the largest latents."""
        overall: Tensor = self.overall(sums.max(dim=-2).values).squeeze(-1)
        return overall


class StructuredCostNetwork(CostNetwork):
    """An ensemble of `members` structured predictors, evaluated together; the prediction is their mean.

    Compute, per phase: each table does work `pooling x dim x exp(linear(log dim, log rows, log pooling, their squares,
    reuse))`; a device costs `launch + sum of work x exp(correction)`, where a small net bounded to a factor of e^+-1.5
    sees the logarithm of the sum, how concentrated it is, how many tables, lookups and distinct bytes share it, and
    whether a table is wider than 32 and than 64: the fused operator gives every row as many threads as the widest needs,
    so narrow tables beside a wide one are dearer. What no sample has shown has no weight: it begins at 0.
    Communication, the same for all members: `latency + a x own + b x largest + c x received` dims (`comm_inputs`).
    """

    architecture: Architecture = "structured"
    mean: Tensor
    std: Tensor
    scale_ms: Tensor
    comm_ms: Tensor
    _INPUTS = ("log_dim", "log_rows", "log_pooling", "log_reuse", "log_unique", "hot_share")
    bound = 1.5  # of the correction's exponent
    correction_inputs = 8  # work, concentration, count, distinct work, dims, lookups, wide, wider
    _SHARED = 6  # per table: wider than 32, than 64, distinct work, dim, lookups, count

    def __init__(self, normaliser: Normaliser, members: int = 4, hidden: int = 16) -> None:
        super().__init__()
        self.members, self.hidden = members, hidden
        self.latent_size = 4 * members + self._SHARED
        columns = [FEATURES.index(name) for name in self._INPUTS]
        self.columns = columns
        self.register_buffer("mean", normaliser.mean[columns].clone())  # [Z] to undo the normalisation
        self.register_buffer("std", normaliser.std[columns].clone())
        inputs = len(columns) + 3
        self.log_scale = nn.Parameter(torch.zeros(members, 2))
        self.slope = nn.Parameter(0.01 * torch.randn(members, 2, inputs))
        self.launch = nn.Parameter(torch.full((members, 2), -4.0))
        seen = torch.randn(members, 2, self.correction_inputs - len(_WIDE), hidden) / math.sqrt(6)
        self.hidden_weight = nn.Parameter(torch.cat([seen, torch.zeros(members, 2, len(_WIDE), hidden)], dim=2))
        self.hidden_bias = nn.Parameter(0.1 * torch.randn(members, 2, hidden))
        self.output_weight = nn.Parameter(0.01 * torch.randn(members, 2, hidden))
        self.register_buffer("comm_ms", torch.zeros(2, 4))  # latency, own, largest, received; see `fit_comm`
        self.register_buffer("scale_ms", torch.ones(2))

    def work_inputs(self, normalised: Float[Tensor, "*B F"]) -> tuple[Float[Tensor, "*B Z"], Float[Tensor, "*B"]]:
        """What the exponent of a table's work is linear in, and the work it multiplies (hundreds of pooled weights)."""
        z = normalised[..., self.columns]
        logs = self._logs(normalised)
        return torch.cat([z, 0.3 * z[..., :3].square()], dim=-1), (logs[..., 0] + logs[..., 2]).exp() / 100

    def _logs(self, normalised: Float[Tensor, "*B F"]) -> Float[Tensor, "*B Z"]:
        return normalised[..., self.columns] * self.std + self.mean

    def encode(self, normalised: Float[Tensor, "*B F"]) -> Float[Tensor, "*B L"]:
        """Per member and compute phase work and its square, then the shared sums."""
        seen, raw = self.work_inputs(normalised)
        exponent = torch.einsum("...z,mpz->...mp", seen, self.slope) + self.log_scale
        work = raw[..., None, None] * exponent.clamp(-15, 8).exp()  # [*B, M, 2]
        dim, _rows, pooling, _reuse, unique, _hot = self._logs(normalised).unbind(-1)
        work = work.flatten(-2)
        wide = (dim.unsqueeze(-1) > torch.tensor(_WIDE).log()).to(dim.dtype)  # [*B, 2]
        shared = torch.stack([(dim + unique).exp() / 100, dim.exp() / 100, pooling.exp() / 10], dim=-1)
        return torch.cat([work, work.square(), wide, shared, torch.ones_like(shared[..., :1])], dim=-1)

    def member_phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D M 4"]:
        """Milliseconds as each member predicts them."""
        pairs, batch = 2 * self.members, sums.shape[:-1]
        flat = sums.reshape(-1, sums.shape[-1]).T  # [L, N]
        work, square = flat[:pairs], flat[pairs : 2 * pairs]  # [2M, N]
        count = flat[-1]
        shared = 0.5 * (flat[-4:] + 1e-3).log()  # [4, N] distinct, dims, lookups, count
        wide = flat[-6:-4].clamp(max=1)  # [2, N]
        seen = torch.stack(
            [
                0.5 * (work + 1e-6).log(),
                2 * (square + 1e-12).sqrt() / (work + 1e-6),
                (shared[3] - 1).expand_as(work),
                *(value.expand_as(work) for value in (*shared[:3], *wide)),
            ],
            dim=1,
        )  # [2M, 8, N]
        weight = self.hidden_weight.reshape(pairs, self.correction_inputs, self.hidden).mT
        hidden = torch.baddbmm(self.hidden_bias.reshape(pairs, self.hidden, 1), weight, seen).relu()  # [2M, H, N]
        output = (self.output_weight.reshape(pairs, 1, self.hidden) @ hidden).squeeze(1) / self.bound
        launch = torch.nn.functional.softplus(self.launch).reshape(pairs, 1)
        compute = (count > 0.5) * (launch + work * (self.bound * output.tanh()).exp())  # [2M, N]
        compute = compute.T.reshape(*batch, self.members, 2) * self.scale_ms  # [*B, D, M, 2]
        comm = comm_inputs(sums[..., -3]) @ self.comm_ms.T  # [*B, D, 2]
        comm = comm.unsqueeze(-2).expand(*batch, self.members, 2)
        return torch.cat([compute[..., :1], comm, compute[..., 1:]], dim=-1)

    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        """The mean over the members."""
        return self.member_phases_ms(sums).mean(dim=-2)

    @torch.no_grad()
    def calibrate(self, sums: Float[Tensor, "S D L"], phases_ms: Float[Tensor, "S D 4"]) -> None:
        """Set the scale of each compute phase from measured costs, once, so that training starts near them."""
        predicted = self.phases_ms(sums)[..., list(_COMPUTE)]
        measured = phases_ms[..., list(_COMPUTE)]
        self.scale_ms *= measured.mean(dim=(0, 1)).clamp(min=1e-4) / predicted.mean(dim=(0, 1)).clamp(min=1e-9)

    @torch.no_grad()
    def fit_comm(self, sums: Float[Tensor, "S D L"], phases_ms: Float[Tensor, "S D 4"]) -> None:
        """Fit both all-to-alls: non-negative least squares of the error relative to the sample's overall cost.

        Three reweighted passes give less say to outliers (Huber's weights), since communication on a shared machine is
        measured with long tails.
        """
        seen = comm_inputs(sums[..., -3]).flatten(0, 1).double().numpy()  # [N, 4]
        overall = phases_ms.sum(-1).amax(dim=1, keepdim=True).expand(phases_ms.shape[:2])
        weight = 1 / overall.flatten().double().numpy()
        for row, phase in enumerate(_COMM):
            measured = phases_ms[..., phase].flatten().double().numpy()
            trust = np.ones_like(weight)
            for _ in range(3):
                solution = optimize.nnls(seen * (weight * trust)[:, None], measured * weight * trust)[0]
                error = np.abs(seen @ solution - measured) * weight
                trust = np.sqrt(np.minimum(1, _OUTLIER * (np.median(error) + 1e-9) / (error + 1e-12)))
            self.comm_ms[row] = torch.from_numpy(solution).float()


def comm_inputs(dims: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D 4"]:
    """What an all-to-all depends on, in hundreds of dims: 1, those that leave a device, the largest, those that arrive."""
    num_devices = dims.shape[-1]
    share = (num_devices - 1) / num_devices
    largest = dims.max(dim=-1, keepdim=True).values.expand_as(dims)
    received = (dims.sum(dim=-1, keepdim=True) - dims) / num_devices
    return torch.stack([torch.ones_like(dims), dims * share, largest * share, received], dim=-1)
