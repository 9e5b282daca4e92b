"""The gradient of the structured cost network's loss, by hand, and Adam on one flat vector.

A fit is hundreds of steps on arrays of a few thousand numbers, where automatic differentiation spends most of its time
on bookkeeping: these steps take a fifth of it. `train_cost.loss` defines what is minimised; `gradient` agrees with its
automatic gradient to rounding (tests). Communication is solved beforehand (`fit_comm`), so it is a constant here.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.cost_model.networks import StructuredCostNetwork

Array = NDArray[np.float32]

HUBER = 0.05  # relative error above which the loss grows linearly
LOSS_SCALE = 10.0
_PHASES = 4
_BETAS, _EPSILON = (0.9, 0.999), 1e-8  # Adam's

_NAMES = ("log_scale", "slope", "launch", "hidden_weight", "hidden_bias", "output_weight")


@dataclass(frozen=True)
class FitData:
    """What does not change during a fit.

    Attributes:
        seen: `[P, Z]` what the exponent of a table's work is linear in.
        raw: `[P]` work before the exponent.
        assignment: `[S, D, P]`.
        shared: `[S, D, 6]` inputs of the correction that are the same for all members: count, distinct, dims, lookups, wide,
            wider.
        present: `[S, D]` 1 where a device has tables.
        compute_ms: `[2, S, D]` measured forward and backward compute.
        scale_ms: `[S, D]` what errors are relative to.
        comm_error: `[2, S, D]` relative error of communication, solved beforehand.
    """

    seen: Array
    raw: Array
    assignment: Array
    shared: Array
    present: Array
    compute_ms: Array
    scale_ms: Array
    comm_error: Array


def error_scale(phases_ms: Float[Tensor, "S D 4"]) -> Float[Tensor, "S D"]:
    """What errors are relative to: the device's cost; at least a fifth of the slowest's, so that idle ones govern little."""
    device_ms = phases_ms.sum(-1)
    return torch.maximum(device_ms, 0.2 * device_ms.max(dim=1, keepdim=True).values)


@torch.no_grad()
def fit_data(
    network: StructuredCostNetwork,
    features: Float[Tensor, "P F"],
    assignment: Float[Tensor, "S D P"],
    phases_ms: Float[Tensor, "S D 4"],
) -> FitData:
    """Prepare samples for fitting `network`, whose communication is already fitted."""
    seen, raw = network.work_inputs(features)
    sums = assignment @ network.encode(features)
    shared = 0.5 * (sums[..., -4:] + 1e-3).log()
    scale = error_scale(phases_ms)
    comm = network.phases_ms(sums)[..., 1:3] - phases_ms[..., 1:3]
    return FitData(
        seen.numpy(),
        raw.numpy(),
        assignment.numpy(),
        torch.cat([shared[..., 3:] - 1, shared[..., :3], sums[..., -6:-4].clamp(max=1)], dim=-1).numpy(),
        (sums[..., -1] > 0.5).float().numpy(),
        phases_ms[..., [0, 3]].permute(2, 0, 1).contiguous().numpy(),
        scale.numpy(),
        (comm / scale[..., None]).permute(2, 0, 1).contiguous().numpy(),
    )


class StructuredFit:
    """Parameters as one flat vector, with views by name.

    Attributes:
        flat: all parameters.
        view: name to view of `flat`.
    """

    def __init__(self, network: StructuredCostNetwork) -> None:
        self.network = network
        self.pairs, self.hidden, self.bound = 2 * network.members, network.hidden, network.bound
        self.shapes = {
            "log_scale": (self.pairs,),
            "slope": (self.pairs, network.slope.shape[-1]),
            "launch": (self.pairs, 1),
            "hidden_weight": (self.pairs, network.correction_inputs, self.hidden),
            "hidden_bias": (self.pairs, self.hidden, 1),
            "output_weight": (self.pairs, self.hidden),
        }
        self.parameters = [getattr(network, name) for name in _NAMES]
        self.flat = np.concatenate([parameter.detach().numpy().ravel() for parameter in self.parameters])
        self.view = self._views(self.flat)
        self.grad = np.empty_like(self.flat)
        self.grad_view = self._views(self.grad)
        self.phase_scale = np.tile(network.scale_ms.numpy(), network.members)[:, None]  # [2M, 1]

    def gradient(self, data: FitData, chosen: Int[np.ndarray, " B"]) -> float:
        """The loss on the chosen samples; its gradient is left in `grad`."""
        view, grad, pairs = self.view, self.grad_view, self.pairs
        tables = len(data.raw)
        assignment = data.assignment[chosen].reshape(-1, tables)  # [N, P]
        shards = len(assignment)

        exponent = data.seen @ view["slope"].T + view["log_scale"]  # [P, 2M]
        work = np.exp(np.clip(exponent, -15, 8)) * data.raw[:, None]
        both = (assignment @ np.concatenate([work, work * work], axis=1)).T  # [4M, N]
        total, square = both[:pairs], both[pairs:]
        safe, root = total + np.float32(1e-6), np.sqrt(square + np.float32(1e-12))
        seen = np.empty((pairs, 2 + data.shared.shape[-1], shards), np.float32)
        seen[:, 0] = np.float32(0.5) * np.log(safe)
        seen[:, 1] = 2 * root / safe
        seen[:, 2:] = data.shared[chosen].reshape(-1, data.shared.shape[-1]).T
        hidden = view["hidden_weight"].transpose(0, 2, 1) @ seen
        hidden += view["hidden_bias"]
        np.maximum(hidden, 0, out=hidden)  # [2M, H, N]
        bent = np.tanh((view["output_weight"][:, None, :] @ hidden)[:, 0] / np.float32(self.bound))  # [2M, N]
        correction = np.exp(np.float32(self.bound) * bent)
        corrected = total * correction
        scale = self.phase_scale * (data.present[chosen].ravel() / data.scale_ms[chosen].ravel())  # [2M, N]
        launch = np.maximum(view["launch"], 0) + np.log1p(np.exp(-np.abs(view["launch"])))  # softplus
        measured = (data.compute_ms[:, chosen] / data.scale_ms[chosen]).reshape(2, shards)
        error = ((launch + corrected) * scale).reshape(-1, 2, shards) - measured  # [M, 2, N]
        comm = data.comm_error[:, chosen].reshape(2, shards)
        whole = error.sum(axis=1) + comm.sum(axis=0)  # [M, N]

        members = pairs // 2
        each, all_ = LOSS_SCALE / (_PHASES * members * shards), LOSS_SCALE / (members * shards)
        loss = each * (_huber(error) + members * _huber(comm)) + all_ * _huber(whole)
        slope = np.float32(each) * np.clip(error / np.float32(HUBER), -1, 1)
        slope += np.float32(all_) * np.clip(whole / np.float32(HUBER), -1, 1)[:, None]
        d_cost = slope.reshape(pairs, shards) * scale  # [2M, N] by launch + corrected

        np.sum(d_cost, axis=1, keepdims=True, out=grad["launch"])
        grad["launch"] *= 1 / (1 + np.exp(-view["launch"]))
        d_output = d_cost * corrected * (1 - bent * bent)  # [2M, N]
        grad["output_weight"][:] = (hidden @ d_output[:, :, None])[..., 0]
        d_hidden = view["output_weight"][:, :, None] * d_output[:, None, :]
        d_hidden *= hidden > 0
        np.sum(d_hidden, axis=2, keepdims=True, out=grad["hidden_bias"])
        np.matmul(seen, d_hidden.transpose(0, 2, 1), out=grad["hidden_weight"])
        d_seen = view["hidden_weight"][:, :2] @ d_hidden  # [2M, 2, N]
        d_total = d_cost * correction + (np.float32(0.5) * d_seen[:, 0] - d_seen[:, 1] * seen[:, 1]) / safe
        d_square = d_seen[:, 1] / (root * safe)
        back = assignment.T @ np.concatenate([d_total, d_square]).T  # [P, 4M]
        d_exponent = (back[:, :pairs] + 2 * work * back[:, pairs:]) * work
        d_exponent *= (exponent > -15) & (exponent < 8)
        np.matmul(d_exponent.T, data.seen, out=grad["slope"])
        np.sum(d_exponent, axis=0, out=grad["log_scale"])
        return float(loss)

    def adam(self, optimizer: torch.optim.Optimizer) -> "FlatAdam":
        """Adam on `flat`, going on from the moments that `optimizer` holds."""
        return FlatAdam(self, optimizer)

    def write_back(self) -> None:
        """Put the parameters into the network."""
        with torch.no_grad():
            for parameter, name in zip(self.parameters, _NAMES, strict=True):
                parameter.copy_(torch.from_numpy(self.view[name].reshape(parameter.shape)))

    def _views(self, flat: Array) -> dict[str, Array]:
        ends = np.cumsum([int(np.prod(self.shapes[name])) for name in _NAMES])
        return {
            name: part.reshape(self.shapes[name]) for name, part in zip(_NAMES, np.split(flat, ends[:-1]), strict=True)
        }


class FlatAdam:
    """Adam (Kingma and Ba 2015) on one vector; its moments live on in a torch optimizer between fits."""

    def __init__(self, fit: StructuredFit, optimizer: torch.optim.Optimizer) -> None:
        self.fit, self.optimizer = fit, optimizer
        self.rate = float(optimizer.param_groups[0]["lr"])
        states = [optimizer.state.get(parameter, {}) for parameter in fit.parameters]
        self.step_count = int(states[0]["step"]) if states[0] else 0
        self.mean, self.variance = (
            np.concatenate(
                [
                    state[moment].numpy().ravel() if state else np.zeros(parameter.numel(), np.float32)
                    for state, parameter in zip(states, fit.parameters, strict=True)
                ]
            )
            for moment in ("exp_avg", "exp_avg_sq")
        )

    def step(self) -> None:
        """One step along `fit.grad`."""
        self.step_count += 1
        first, second = _BETAS
        self.mean += np.float32(1 - first) * (self.fit.grad - self.mean)
        self.variance += np.float32(1 - second) * (self.fit.grad * self.fit.grad - self.variance)
        rate = self.rate / (1 - first**self.step_count)
        root = np.sqrt(self.variance / np.float32(1 - second**self.step_count))
        self.fit.flat -= np.float32(rate) * self.mean / (root + np.float32(_EPSILON))

    def write_back(self) -> None:
        """Put the moments into the optimizer."""
        ends = np.cumsum([parameter.numel() for parameter in self.fit.parameters])[:-1]
        parts = zip(self.fit.parameters, np.split(self.mean, ends), np.split(self.variance, ends), strict=True)
        for parameter, mean, variance in parts:
            self.optimizer.state[parameter] = {
                "step": torch.tensor(float(self.step_count)),
                "exp_avg": torch.from_numpy(mean.copy()).reshape(parameter.shape),
                "exp_avg_sq": torch.from_numpy(variance.copy()).reshape(parameter.shape),
            }


def _huber(error: Array) -> float:
    size = np.abs(error)
    return float(np.where(size < HUBER, size * size * np.float32(0.5 / HUBER), size - np.float32(0.5 * HUBER)).sum())
