"""Public measurements of GPUs beside what the presets predict: predicted over measured, as a geometric mean with its spread.

Kernels: FBGEMM's times in `data/tbe.csv`. The forward sweep of torchrec PR 2365 (taken for an A100) and the V100's times are
those that the constants of `roofline.py` are fitted to. The bar is a mean within 0.9 to 1.1, for rows in device memory.
Collectives: each time within a node, predicted by the curve through the other sizes. The bar is an error of 15 %.
"""

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import get_args

import numpy as np
import scipy
import torch
from torch import Tensor

from dreamshard.hardware import loads, roofline
from dreamshard.hardware.accelerator import MEASURED_LINKS, PRESETS, AcceleratorSpec
from dreamshard.hardware.links import Operation, collective_times, curve_s, fit_link_curve
from dreamshard.tables import BYTES_PER_WEIGHT, NUM_BINS, Tables
from tests.benchmarks.measuring import Row, row
from tests.helpers.testbeds import table_loads

TIMES = Path(__file__).parent / "data" / "tbe.csv"
TAKEN_FOR = {"unknown (Meta, 2024)": "a100", "unknown (Meta devgpu Jan 2021, 607 GB/s: V100 likely)": "v100"}
POWER = 1.05  # of the source's power law: row x is looked up in proportion to x ** -POWER
ADAM_ROWS = 3  # a row and its two moments, each as wide, are read and written
LARGEST_ERROR = 0.15


def rows() -> Iterator[Row]:
    """Kernels by GPU and kind, then collectives by GPU and operation."""
    for (gpu, kind), ratios in kernel_ratios().items():
        logs = np.log(ratios)
        text = f"{gpu}, {len(ratios)} times of {kind}: predicted / measured, mean (spread {math.exp(logs.std()):.2f}, "
        yield row(f"{text}{min(ratios):.2f} to {max(ratios):.2f})", math.exp(logs.mean()), "")
    for operation in get_args(Operation):
        for gpu in sorted(chain.from_iterable(MEASURED_LINKS.values())):
            measured = collective_times(gpu, operation)
            errors = [error for times_us in measured.times_us for error in left_out_errors(measured.sizes, times_us)]
            within = sum(error <= LARGEST_ERROR for error in errors)
            text = f"{gpu}, {operation}: of {len(errors)} times, within 15 % when left out (worst {max(errors):.0%})"
            yield row(text, within, "")


def kernel_ratios() -> dict[tuple[str, str], list[float]]:
    """Predicted over measured of every time that is modelled, by GPU and kind."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for path in sorted(TIMES.parent.glob("tbe*.csv")):  # and those of `tests.gpu.check`
        for given in csv.DictReader(path.read_text().splitlines()):
            kind = kind_of(given)
            if kind is not None:
                predicted_us = 1e6 * predicted_s(given, PRESETS[TAKEN_FOR.get(given["gpu"], given["gpu"])])
                ratios.setdefault((given["gpu"], kind), []).append(predicted_us / float(given["time_us"]))
    return ratios


def kind_of(given: Mapping[str, str]) -> str | None:
    """Rows in device memory, in host memory, or a call so small that the host's launches decide; None if not modelled."""
    notes = given["notes"]
    if "UVM" in notes:  # while a cache fills, as in the source, it misses more than a full one
        return "rows in host memory" if given["op"] == "bwd" else None
    if "not evaluated" in notes:  # nine times slower than the same source's other list, which it does not explain
        return None
    return "small calls" if "bound" in notes or given["gpu"] == "b200" else "kernels"


def predicted_s(given: Mapping[str, str], spec: AcceleratorSpec) -> float:
    """Seconds of the kernel or of the call, as the source measured."""
    notes, batch_size, tables = given["notes"], int(given["B"].split(",")[0]), tables_of(given)
    both = given["op"] == "fwd+bwd"
    precision = "fp16" if given["dtype_weights"] == "fp16" else "fp32"
    figures = roofline.figures_of(spec, batch_size)
    sums = table_loads(tables, batch_size, precision, "rowwise_adagrad" if both else "sgd").sum(dim=0)  # [K]
    if "optimizer adam" in notes:
        sums[loads.UPDATE_BYTES] *= ADAM_ROWS
    # A benchmark repeats one call, so the cache still holds a share of its rows.
    moved = math.inf if "cold caches" in notes else float(sums[loads.STREAM_BYTES] + sums[loads.FIRST_BYTES])
    sums[loads.FIRST_BYTES] *= 1 - min(1.0, spec.l2_bytes / moved)
    if "atomic" in notes:  # before FBGEMM sorted, every lookup read its row and added to it
        update_s = 2 * float(sums[loads.READ_BYTES]) / (roofline.UPDATE_SHARE * spec.memory_bytes_per_s)
        return update_s + float(sums[loads.GRAD_BYTES]) / (roofline.BANDWIDTH_SHARE * spec.memory_bytes_per_s)
    if given["op"] == "fwd" and ("nvprof" in notes or "kernel only" in notes):
        return roofline.forward_kernel_s(figures, sums.numpy())
    if "UVM" in notes:
        return host_update_s(notes, sums, int(given["D"]), figures)
    forward_s, backward_s = roofline.forward_s(figures, sums.numpy()), roofline.backward_s(figures, sums.numpy())
    return {"fwd": forward_s, "bwd": backward_s, "fwd+bwd": forward_s + backward_s}[given["op"]]


def host_update_s(notes: str, sums: Tensor, dim: int, figures: np.ndarray) -> float:
    """Seconds of the update with Adam's moments in host memory, and the rows too unless they are cached."""
    row_bytes = sums[loads.UNIQUE] * dim * BYTES_PER_WEIGHT["fp32"]
    cached = "CACHING" in notes
    moved = (0 if cached else 1) + (ADAM_ROWS - 1 if "optimizer adam" in notes else 0)
    on_device = sums.clone()
    on_device[loads.UPDATE_BYTES] = 2 * row_bytes * cached
    on_device[loads.HOST_STATE_BYTES] = moved * row_bytes
    return float(roofline.backward_s(figures, on_device.numpy()))


def tables_of(given: Mapping[str, str]) -> Tables:
    """The tables of a measurement, with the statistics expected of its distribution of lookups."""
    count, notes = int(given["T"]), given["notes"]
    rows_of, dims, pooling = (_repeated(given[key], count) for key in "EDL")
    bag = re.search(r"mean bag about ([\d.]+)", notes)
    pooling = [float(bag[1])] * count if bag else pooling
    lookups = [factor * int(given["B"].split(",")[0]) for factor in pooling]
    power = POWER if "avg distinct rows" in notes else 0.0
    found = np.stack([_expected_rows(int(size), total, power) for size, total in zip(rows_of, lookups, strict=True)])
    unique = found.sum(axis=1)
    return Tables(
        tuple(f"table-{index}" for index in range(count)),
        torch.tensor(rows_of).long(),
        torch.tensor(dims).long(),
        torch.tensor(pooling, dtype=torch.float64),
        torch.from_numpy(found / unique[:, None]).float(),
        torch.tensor(lookups).round().long(),
        torch.from_numpy(unique).round().long(),
    )


def _repeated(text: str, count: int) -> list[float]:
    """One value for each table; a list is repeated in its order."""
    values = [float(value) for value in text.split(",")]
    return [values[index % len(values)] for index in range(count)]


@cache
def _expected_rows(size: int, lookups: float, power: float) -> np.ndarray:
    """`[17]` expected number of rows that are looked up (0,1], (1,2], (2,4] ... times."""
    edges = np.unique(np.concatenate([np.arange(1, min(size, 1000) + 2), np.geomspace(1, size + 1, 4000).round()]))
    mass, width = edges ** (1 - power), np.diff(edges)  # rows of each stretch are looked up about equally often
    mean = lookups * np.diff(mass) / (mass[-1] - mass[0]) / width
    upper = np.append(2.0 ** np.arange(NUM_BINS - 1), np.inf)
    reached = np.vstack([scipy.stats.poisson.pmf(0, mean), scipy.stats.poisson.cdf(upper[:, None], mean)])  # [18, S]
    return np.asarray((np.diff(reached, axis=0) * width).sum(axis=1))


def left_out_errors(sizes: np.ndarray, times_us: np.ndarray) -> Sequence[float]:
    """Relative error of each size, by the curve through the others."""
    errors = []
    for size, time_us in zip(sizes, times_us, strict=True):
        others = sizes != size
        curve = fit_link_curve(np.array([2]), sizes[others], times_us[None, others], 2)
        seconds = float(curve_s(curve, torch.tensor(float(size), dtype=torch.float64)))
        errors.append(abs(1e6 * seconds / time_us - 1))
    return errors
