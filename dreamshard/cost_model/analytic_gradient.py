"""The gradient of the structured cost network's loss by hand, and Adam on one flat vector.

A fit is hundreds of steps on arrays of a few thousand numbers, where automatic differentiation spends most of its time
on bookkeeping: these steps take a fifth of it. `StructuredCostNetwork.loss` defines the loss; `gradient` agrees with
its automatic gradient to rounding (tests). Communication is fitted beforehand, so it is constant here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from dreamshard.cost_model import structured_formula as formula

Array = NDArray[np.float32]

HUBER = 0.05
"""Relative error above which the loss grows linearly."""
LOSS_SCALE = 10.0
_PHASES = 4
_ADDED = ("launch", "hidden_bias")
_BETAS, _EPSILON = (0.9, 0.999), 1e-8  # Adam's


@dataclass(frozen=True)
class FitData:
    """What is constant during a fit.

    Attributes:
        work_inputs: `[P, Z]` the exponent of a table's work is linear in them.
        raw_work: `[P, 1]` work before the exponent; `[P, 2M]` where it differs between the pairs.
        assignment: `[S, D, P]` 1 where sample `s` has table `p` on device `d`.
        shared_inputs: `[S, D, 6]` inputs of the correction that all pairs share.
        present: `[S, D]` 1 where a device has tables.
        compute_ms: `[2, S, D]` measured forward and backward compute.
        scale_ms: `[S, D]` what errors are relative to; see `error_scale`.
        comm_error: `[2, S, D]` relative error of the fitted communication.
    """

    work_inputs: Array
    raw_work: Array
    assignment: Array
    shared_inputs: Array
    present: Array
    compute_ms: Array
    scale_ms: Array
    comm_error: Array


def error_scale(phases_ms: Float[Tensor, "S D 4"]) -> Float[Tensor, "S D"]:
    """What errors are relative to: the device's cost, at least a fifth of the slowest's, so that idle ones count little."""
    device_ms = phases_ms.sum(-1)
    return torch.maximum(device_ms, 0.2 * device_ms.max(dim=1, keepdim=True).values)


class StructuredFit:
    """The network's parameters and Adam's moments as flat vectors; a torch optimizer keeps the moments between fits.

    Attributes:
        parameters: by name, in the order of `flat`.
        flat: all parameters; `view` has one row per pair.
        grad: gradient by `flat`, set by `gradient`; `grad_view` has one row per pair.
        mean: of the gradient, with its `variance`.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], scale_ms: Float[Tensor, " 2"], optimizer: torch.optim.Optimizer
    ) -> None:
        """Copy the parameters of a network whose compute phases have the scales `scale_ms`."""
        self.parameters, self.optimizer = dict(parameters), optimizer
        self.rate = float(optimizer.param_groups[0]["lr"])
        states = [optimizer.state.get(parameter, {}) for parameter in parameters.values()]
        self.step_count = int(states[0].get("step", 0))
        self.flat = _flat(parameters.values())
        self.mean, self.variance = (
            _flat(state[moment] for state in states) if self.step_count else np.zeros_like(self.flat)
            for moment in ("exp_avg", "exp_avg_sq")
        )
        self.view = self._views(self.flat)
        self.grad = np.empty_like(self.flat)
        self.grad_view = self._views(self.grad)
        self.pairs = len(self.view["slope"])
        self.phase_scale = np.tile(scale_ms.numpy(), self.pairs // 2)[:, None]  # [2M, 1]

    def gradient(self, data: FitData, chosen: Int[np.ndarray, " B"]) -> float:
        """The loss on the chosen samples; sets `grad`."""
        view, grad, pairs = self.view, self.grad_view, self.pairs
        tables = len(data.raw_work)
        assignment = data.assignment[chosen].reshape(-1, tables)  # [N, P]
        shards = len(assignment)

        exponent = data.work_inputs @ view["slope"].T + view["log_scale"]  # [P, 2M]
        work = np.exp(np.clip(exponent, formula.LEAST_EXPONENT, formula.MOST_EXPONENT)) * data.raw_work
        both = (assignment @ np.concatenate([work, work * work], axis=1)).T  # [4M, N]
        total, square = both[:pairs], both[pairs:]
        safe, root = total + formula.LEAST_WORK, np.sqrt(square + formula.LEAST_SQUARE)
        inputs = np.empty((pairs, formula.CORRECTION_INPUTS, shards), np.float32)
        inputs[:, formula.WORK_INPUT] = np.float32(0.5) * np.log(safe)
        inputs[:, formula.CONCENTRATION_INPUT] = 2 * root / safe
        inputs[:, formula.SHARED_INPUTS] = data.shared_inputs[chosen].reshape(shards, -1).T
        hidden = view["hidden_weight"].transpose(0, 2, 1) @ inputs
        hidden += view["hidden_bias"]
        np.maximum(hidden, 0, out=hidden)  # [2M, H, N]
        tanh = np.tanh((view["output_weight"][:, None, :] @ hidden)[:, 0] / formula.BOUND)  # [2M, N]
        correction = np.exp(formula.BOUND * tanh)
        corrected = total * correction
        scale = self.phase_scale * (data.present[chosen].ravel() / data.scale_ms[chosen].ravel())  # [2M, N]
        launch = np.maximum(view["launch"], 0) + np.log1p(np.exp(-np.abs(view["launch"])))  # softplus
        measured = (data.compute_ms[:, chosen] / data.scale_ms[chosen]).reshape(2, shards)
        error = ((launch + corrected) * scale).reshape(-1, 2, shards) - measured  # [M, 2, N]
        comm = data.comm_error[:, chosen].reshape(2, shards)
        whole = error.sum(axis=1) + comm.sum(axis=0)  # [M, N]

        members = pairs // 2
        phase_weight, whole_weight = LOSS_SCALE / (_PHASES * members * shards), LOSS_SCALE / (members * shards)
        slope = np.float32(phase_weight) * np.clip(error / np.float32(HUBER), -1, 1)
        slope += np.float32(whole_weight) * np.clip(whole / np.float32(HUBER), -1, 1)[:, None]
        of_phases, of_comm, of_whole = _huber(error), _huber(comm), _huber(whole)
        loss = phase_weight * (float(of_phases.sum()) + members * float(of_comm.sum()))
        loss += whole_weight * float(of_whole.sum())
        d_cost = slope.reshape(pairs, shards) * scale  # [2M, N] by launch + corrected

        np.sum(d_cost, axis=1, keepdims=True, out=grad["launch"])
        grad["launch"] *= 1 / (1 + np.exp(-view["launch"]))
        d_output = d_cost * corrected * (1 - tanh * tanh)  # [2M, N]
        grad["output_weight"][:] = (hidden @ d_output[:, :, None])[..., 0]
        d_hidden = view["output_weight"][:, :, None] * d_output[:, None, :]
        d_hidden *= hidden > 0
        np.sum(d_hidden, axis=2, keepdims=True, out=grad["hidden_bias"])
        np.matmul(inputs, d_hidden.transpose(0, 2, 1), out=grad["hidden_weight"])
        d_own = view["hidden_weight"][:, : formula.SHARED_INPUTS.start] @ d_hidden  # [2M, 2, N]
        d_work, d_concentration = d_own[:, formula.WORK_INPUT], d_own[:, formula.CONCENTRATION_INPUT]
        d_total = d_cost * correction
        d_total += (np.float32(0.5) * d_work - d_concentration * inputs[:, formula.CONCENTRATION_INPUT]) / safe
        d_square = d_concentration / (root * safe)
        back = assignment.T @ np.concatenate([d_total, d_square]).T  # [P, 4M]
        d_exponent = (back[:, :pairs] + 2 * work * back[:, pairs:]) * work
        d_exponent *= (exponent > formula.LEAST_EXPONENT) & (exponent < formula.MOST_EXPONENT)
        np.matmul(d_exponent.T, data.work_inputs, out=grad["slope"])
        np.sum(d_exponent, axis=0, out=grad["log_scale"])
        return loss

    def step(self) -> None:
        """One step of Adam (Kingma and Ba 2015) along `grad`."""
        self.step_count += 1
        first, second = _BETAS
        self.mean += np.float32(1 - first) * (self.grad - self.mean)
        self.variance += np.float32(1 - second) * (self.grad * self.grad - self.variance)
        rate = self.rate / (1 - first**self.step_count)
        root = np.sqrt(self.variance / np.float32(1 - second**self.step_count))
        self.flat -= np.float32(rate) * self.mean / (root + np.float32(_EPSILON))

    @torch.no_grad()
    def write_back(self) -> None:
        """Put the parameters into the network and the moments into the optimizer."""
        parts = (self._split(vector) for vector in (self.flat, self.mean, self.variance))
        for parameter, *values in zip(self.parameters.values(), *parts, strict=True):
            value, mean, variance = (torch.tensor(part).reshape(parameter.shape) for part in values)
            parameter.copy_(value)
            step = torch.tensor(float(self.step_count))
            self.optimizer.state[parameter] = {"step": step, "exp_avg": mean, "exp_avg_sq": variance}

    def _split(self, flat: Array) -> list[Array]:
        return np.split(flat, np.cumsum([parameter.numel() for parameter in self.parameters.values()])[:-1])

    def _views(self, flat: Array) -> dict[str, Array]:
        """Views of `flat` by name: one row per pair, and an axis of the samples where a parameter is added to them."""
        return {
            name: part.reshape(-1, *parameter.shape[2:], *([1] if name in _ADDED else []))
            for (name, parameter), part in zip(self.parameters.items(), self._split(flat), strict=True)
        }


def _flat(tensors: Iterable[Tensor]) -> Array:
    flat: Array = nn.utils.parameters_to_vector(tensors).detach().numpy()
    return flat


def _huber(error: Array) -> Array:
    size = np.abs(error)
    return np.where(size < HUBER, size * size * np.float32(0.5 / HUBER), size - np.float32(0.5 * HUBER))
