"""A law of four real GPUs: the cost networks that NeuroShard's authors pre-trained on their measurements (MLSys 2023).

The files `compute.pt`, `comm_4_bw.pt` and `comm_4_fw.pt` are in `models/` of github.com/anonymoussubmition/neuroshard at
e363480f8332; the same code, without them, is github.com/daochenzha/neuroshard (MIT). This project does not contain them:
`DREAMSHARD_NEUROSHARD` names their folder.

The compute network predicts milliseconds of one fused call, forward and backward, fp32 with SGD and 65,536 samples; a
quarter counts as forward, as on a published A100 trace. The authors' step is the slowest device's compute, backward and
forward all-to-all, and the latter includes waiting for devices that start it later. `true_ms` has these waits; samples of a
testbed do not, as on this project's own.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

from dreamshard.cost_model.compiled import Floats
from dreamshard.tables import NUM_BINS, ON_ONE_DEVICE, Placement, Tables
from dreamshard.tasks import PlacementTask, Shards
from tests.helpers.laws import Law

FOLDER = "DREAMSHARD_NEUROSHARD"
DEVICES, MOST_TABLES, MOST_BYTES, DIMS = 4, 15, 4 * 2**30, (4, 8, 16, 32, 64, 128)
SETTING = DEVICES, "fp32", "sgd"
LEAST_WIDTH, MOST_WIDTH = 40, 7680
"""Of an all-to-all, all devices together: 10 tables of dim 4, 60 of dim 128."""
FORWARD_SHARE = 0.25
WIDER_TABLES = 60

_BIN_ORDER = sorted(range(NUM_BINS), key=str)  # features are in the order of their names
_FILES = ("compute.pt", "comm_4_bw.pt", "comm_4_fw.pt")
Layers = list[tuple[Floats, Floats]]


@dataclass(frozen=True, kw_only=True)
class NeuroShardLaw(Law):
    """Costs of whole tables and columns on four devices; raises ValueError outside the range of the measurements.

    Attributes:
        head: weights and biases from a device's summed latents to its compute.
        wider: whether the networks may also predict up to 60 tables on a device, as in NeuroShard's own
            tasks, and dims between the measured ones.
    """

    head: Layers
    waits: bool = True
    wider: bool = False

    def phases_ms(self, task: PlacementTask, placement: Placement, waits: bool = False) -> torch.Tensor:
        """See `Law`."""
        if problem := self.outside(task, placement, self.wider):
            raise ValueError(f"{problem}, which NeuroShard's authors did not measure; place other tables")
        return super().phases_ms(task, placement, waits)

    def outside(self, task: PlacementTask, placement: Placement, wider: bool = False) -> str:
        """Why a placement is outside the range; empty if it is not."""
        shards, setting = Shards.of(task, placement), (task.num_devices, task.precision, task.optimizer)
        dims = {*shards.num_columns.tolist()} - {*(range(4, 129, 4) if wider else DIMS)}
        count, size = int(shards.device.bincount().max()), int(shards.memory_bytes().max())
        most = WIDER_TABLES if wider else MOST_TABLES
        if setting != SETTING or not bool(shards.is_any(*ON_ONE_DEVICE).all()):
            return f"{setting}, or rows of tables"
        if dims:
            return f"dims {sorted(dims)}"
        return f"{count} tables of {size} bytes on a device" if size > MOST_BYTES or count > most else ""

    def exchange_ms(self, dims: Floats, own_ms: Floats | None = None) -> Floats:
        """See `Law`."""
        if len(dims) != DEVICES or not LEAST_WIDTH <= dims.sum() <= MOST_WIDTH:
            raise ValueError(f"all-to-all of dims {dims}; give {DEVICES} of {LEAST_WIDTH} to {MOST_WIDTH} together")
        return super().exchange_ms(dims, own_ms)


def neuroshard_folder() -> Path:
    """The folder of the law's files, from the environment."""
    if FOLDER not in os.environ:
        raise ValueError(f"{FOLDER} is not set; set it to the folder with {', '.join(_FILES)}")
    return Path(os.environ[FOLDER])


@cache
def neuroshard_law(folder: Path, *, wider: bool = False) -> NeuroShardLaw:
    """The law of the three files in a folder."""
    if wider:
        return replace(neuroshard_law(folder), wider=True)
    compute, backward, forward = (torch.load(folder / name, weights_only=True) for name in _FILES)
    table, head = _layers(compute, "t_hidden"), _layers(compute, "c_hidden", normalises=False)
    fused_ms = _compiled(head)
    backward_ms, forward_ms = _compiled(_layers(backward, "hidden")), _compiled(_layers(forward, "hidden"))

    def loads(tables: Tables) -> Floats:
        dim, pooling, rows = (column.double().numpy() for column in (tables.dim, tables.pooling_factor, tables.rows))
        latent = np.column_stack([tables.bins.double().numpy()[:, _BIN_ORDER], dim, pooling, rows])
        for weight, bias in table:
            latent = np.maximum(latent @ weight.T + bias, 0)
        return np.column_stack([np.ones_like(dim), dim, latent])

    @numba.njit
    def compute_ms(load: Floats) -> tuple[float, float]:
        total = max(fused_ms(load[2:])[0], 0.0)
        return FORWARD_SHARE * total, (1 - FORWARD_SHARE) * total

    @numba.njit
    def comm_ms(curves: Floats, dims: Floats, own_ms: Floats, out: Floats) -> None:
        out[:, 1] = np.maximum(backward_ms(dims), 0.0)
        start = own_ms + out[:, 1] if own_ms.any() else own_ms
        out[:, 0] = np.maximum(forward_ms(np.concatenate((dims, start - start.min()))), 0.0)

    return NeuroShardLaw(name="neuroshard", loads=loads, compute_ms=compute_ms, comm_ms=comm_ms, head=head)


def _layers(saved: dict[str, Any], name: str, *, normalises: bool = True) -> Layers:
    """Weights and biases; the first ones include the normalisation of the inputs."""
    state = {key: value.double().numpy() for key, value in saved["state_dict"].items() if key.startswith(f"{name}.")}
    layers = [(state[f"{name}.{k}.weight"], state[f"{name}.{k}.bias"]) for k in range(len(state) // 2)]
    if normalises:
        mean, std = (saved[f"feature_{figure}"].double().numpy() for figure in ("means", "stds"))
        weight, bias = layers[0]
        layers[0] = weight / std, bias - weight / std @ mean
    return layers


def _compiled(layers: Layers) -> Callable[[Floats], Floats]:
    """Linear layers with ReLU between them, as a compiled function of one vector."""
    weights, biases = (np.concatenate([layer.ravel() for layer in side]) for side in zip(*layers, strict=True))
    sizes = np.array([layers[0][0].shape[1], *(len(bias) for _, bias in layers)])

    @numba.njit
    def run(values: Floats) -> Floats:
        first, unit = 0, 0
        for k in range(len(sizes) - 1):
            count, size = sizes[k + 1], sizes[k]
            weight = weights[first : first + count * size].reshape(count, size)
            values = weight @ np.ascontiguousarray(values) + biases[unit : unit + count]
            first, unit = first + count * size, unit + count
            if k + 2 < len(sizes):
                values = np.maximum(values, 0.0)
        return values

    return run
