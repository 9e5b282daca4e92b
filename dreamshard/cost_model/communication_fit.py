"""Weights of the structured network's communication from placements of one topology."""

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.cost_model.structured_formula import comm_inputs

_COMM = [1, 2]  # of PHASES: forward_comm, backward_comm
_OUTLIER = 2.5  # medians of the absolute error, above which a sample counts less


def fitted_communication(dims: Float[Tensor, "S D"], phases_ms: Float[Tensor, "S D 4"]) -> Float[Tensor, "2 4"]:
    """Weights of `comm_inputs`: non-negative least squares of the error relative to the sample's overall cost.

    Three reweighted passes give outliers less weight (Huber's), since communication on a shared machine is measured with
    long tails.
    """
    inputs = comm_inputs(dims).flatten(0, 1).double().numpy()  # [N, 4]
    overall = phases_ms.sum(-1).amax(dim=1, keepdim=True).expand(phases_ms.shape[:2])
    weight = 1 / overall.flatten().double().numpy()
    fitted = torch.zeros(2, 4)
    for row, phase in enumerate(_COMM):
        measured = phases_ms[..., phase].flatten().double().numpy()
        trust = np.ones_like(weight)
        for _ in range(3):
            solution = scipy.optimize.nnls(inputs * (weight * trust)[:, None], measured * weight * trust)[0]
            error = np.abs(inputs @ solution - measured) * weight
            trust = np.sqrt(np.minimum(1, _OUTLIER * (np.median(error) + 1e-9) / (error + 1e-12)))
        fitted[row] = torch.from_numpy(solution).float()
    return fitted
