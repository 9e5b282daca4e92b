"""Fit an accelerator's effective figures to measurements on it.

A datasheet gives peak figures; the roofline needs those that gathers reach. A few figures are scaled by least squares of
the logarithms of compute times, robust against outliers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.costs import CostSample
from dreamshard.prediction_metrics import mean_relative_error
from dreamshard.testbeds.accelerators.loads import shard_loads, table_loads
from dreamshard.testbeds.accelerators.roofline import phase_costs
from dreamshard.testbeds.accelerators.specs import AcceleratorSpec

FIGURES = ("memory_bytes_per_s", "l2_bytes", "l2_bytes_per_s", "clock_hz", "launch_s")
"""Bandwidth of memory, size and bandwidth of the cache, instruction issue, launch."""
MAX_SCALE = 8.0  # up or down
OUTLIER_LOG_ERROR = 0.1  # larger errors count less


@dataclass(frozen=True, kw_only=True)
class Refit:
    """A spec fitted to measurements, and its error before and after.

    Attributes:
        spec: with the new figures.
        scales: new over old value of each of `FIGURES`.
        before_mape: mean relative error of a shard's compute time with the old figures.
        after_mape: with the new figures.
    """

    spec: AcceleratorSpec
    scales: dict[str, float]
    before_mape: float
    after_mape: float
    num_shards: int

    def __str__(self) -> str:
        changes = ", ".join(f"{name} x {scale:.3g}" for name, scale in self.scales.items())
        return (
            f"{self.spec.name} on {self.num_shards} shards: error {self.before_mape:.1%} before, {self.after_mape:.1%} "
            f"after ({changes})"
        )


def refit(spec: AcceleratorSpec, samples: Sequence[CostSample]) -> Refit:
    """Fit `FIGURES` of `spec` to measured compute times.

    Args:
        samples: placements on any number of devices, all with one batch size; devices without tables are ignored.

    Raises:
        ValueError: there are no samples, or several batch sizes.
    """
    batches = {sample.batch_size for sample in samples}
    if len(batches) != 1:
        raise ValueError(
            f"{len(samples)} samples of batches {sorted(batches)} cannot be fitted together; give samples of one batch "
            "size, and at least one"
        )
    batch_size = batches.pop()
    loads, measured = _shards(samples, batch_size)  # [N, K], [N, 2]

    def log_errors(log_scales: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        predicted = _compute_ms(_scaled(spec, log_scales), loads, batch_size)
        return np.asarray((predicted / measured).log().flatten().numpy())

    solution = scipy.optimize.least_squares(
        log_errors,
        np.zeros(len(FIGURES)),
        bounds=(-np.log(MAX_SCALE), np.log(MAX_SCALE)),
        loss="soft_l1",
        f_scale=OUTLIER_LOG_ERROR,
        diff_step=1e-2,  # the roofline has kinks, and the cache is a whole number of bytes
    )
    after = _scaled(spec, solution.x)
    return Refit(
        spec=after,
        scales={name: float(np.exp(log_scale)) for name, log_scale in zip(FIGURES, solution.x, strict=True)},
        before_mape=mean_relative_error(_compute_ms(spec, loads, batch_size).sum(dim=1), measured.sum(dim=1)),
        after_mape=mean_relative_error(_compute_ms(after, loads, batch_size).sum(dim=1), measured.sum(dim=1)),
        num_shards=len(measured),
    )


def _shards(samples: Sequence[CostSample], batch_size: int) -> tuple[Float[Tensor, "N K"], Float[Tensor, "N 2"]]:
    """Summed loads and milliseconds of forward and backward of every device with tables."""
    loads, measured = [], []
    for sample in samples:
        task = sample.task
        own = table_loads(task.tables, batch_size, task.precision, task.optimizer)
        sums = shard_loads(own, sample.placement.device[None], task.num_devices)[0]  # [D, K]
        costs = torch.stack([sample.costs.forward_compute_ms, sample.costs.backward_compute_ms], dim=1).double()
        busy = (costs > 0).all(dim=1)
        loads.append(sums[busy])
        measured.append(costs[busy])
    return torch.cat(loads), torch.cat(measured)


def _scaled(spec: AcceleratorSpec, log_scales: npt.NDArray[np.float64]) -> AcceleratorSpec:
    scaled = {name: getattr(spec, name) * float(np.exp(x)) for name, x in zip(FIGURES, log_scales, strict=True)}
    return replace(spec, **{**scaled, "l2_bytes": round(scaled["l2_bytes"])})


def _compute_ms(spec: AcceleratorSpec, loads: Float[Tensor, "N K"], batch_size: int) -> Float[Tensor, "N 2"]:
    costs = phase_costs(loads[:, None], batch_size, spec)
    return torch.stack([costs.forward_compute_ms[:, 0], costs.backward_compute_ms[:, 0]], dim=1)
