"""Public measurements of GPUs beside what the presets predict: medians of predicted over measured, and what they are worth.

Kernels: FBGEMM's times in `data/tbe.csv`, by GPU and kind. Collectives: each time within a node, predicted by the curve
through the other sizes; the bar is an error of 15 %. `DREAMSHARD_GPU_MEASUREMENTS` names a folder of what is not part of this
project: `neuroshard/`, the networks of `neuroshard_law.py`, and `traces/`, a trace of HolisticTraceAnalysis. Without a source
its rows are left out.

The last rows place whole tables of the law's tasks by the preset alone, and compare with the best heuristic and with
annealing on the law. Tasks are drawn as in `bench_real_gpu.py`: `--quick` places the quarter of the tables for choices.
"""

import csv
import gzip
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import get_args

import numpy as np
import scipy
import torch
from torch import Tensor

from dreamshard.hardware import roofline
from dreamshard.hardware.accelerator import MEASURED_LINKS, PRESETS, AcceleratorSpec
from dreamshard.hardware.links import VECTOR_BYTES, Operation, collective_s, collective_times, curve_s, fit_link_curve
from dreamshard.search import RooflinePlacer
from dreamshard.search.packing import baselines
from dreamshard.tables import BYTES_PER_WEIGHT, NUM_BINS, Tables
from dreamshard.tasks import PlacementTask
from tests.benchmarks.annealing import annealed_ms
from tests.benchmarks.bench_real_gpu import Cell, draw_tasks
from tests.benchmarks.measuring import ALL_DIMS, Dims, Row, Size, meta_tables, row
from tests.helpers.laws import BATCH
from tests.helpers.neuroshard_law import DEVICES, MOST_BYTES, NeuroShardLaw, neuroshard_law
from tests.helpers.testbeds import RTX2080TI, table_loads

TIMES = Path(__file__).parent / "data" / "tbe.csv"
FOLDER = "DREAMSHARD_GPU_MEASUREMENTS"
TRACE = "traces/a100-40gb-8ranks-rank3.json.gz"
TAKEN_FOR = {"unknown (Meta, 2024)": "a100", "unknown (Meta devgpu Jan 2021, 607 GB/s: V100 likely)": "v100"}
POWER = 1.05  # of the source's power law: row x is looked up in proportion to x ** -POWER
ADAM_ROWS = 3  # a row and its two moments, each as wide, are read and written
LARGEST_ERROR = 0.15
# Of the trace only sums over tables are known: 122 tables, 90,837 rows, 8,720 dims, 15.8 million lookups
TRACED = {"T": "122", "E": str(90_837 / 122), "D": ",".join(["68"] * 16 + ["72"] * 106), "B": "8192", "notes": ""}
TRACED["L"] = str(15_807_216 / 122 / 8192)
KERNELS = {
    "forward": (roofline.forward_kernel_s, "codegen_forward_unweighted"),
    "update": (roofline.update_kernels_s, "unweighted_kernel_(cta|warp)_per_row"),
    "sort": (roofline.sort_kernels_s, "RadixSort"),
}
SIZES, MOVES = tuple(Size(count, DEVICES) for count in (20, 30, 40)), 25_000


def rows(quick: bool = False) -> Iterator[Row]:
    """Kernels by GPU and kind, collectives by GPU and operation; then of the folder, the trace and the law."""
    for (gpu, kind), times in kernel_times().items():
        yield agreement(f"{gpu}, {kind}", *zip(*times, strict=True))
    for operation in get_args(Operation):
        for gpu in sorted(chain.from_iterable(MEASURED_LINKS.values())):
            measured = collective_times(gpu, operation)
            errors = [error for times_us in measured.times_us for error in left_out_errors(measured.sizes, times_us)]
            within = sum(error <= LARGEST_ERROR for error in errors)
            text = f"{gpu}, {operation}: of {len(errors)} times, within 15 % when left out (worst {max(errors):.0%})"
            yield row(text, within, "")
    folder = Path(os.environ.get(FOLDER, "."))
    if (folder / TRACE).exists():
        yield from trace_rows(folder / TRACE)
    if (folder / "neuroshard").exists():
        yield from law_rows(neuroshard_law(folder / "neuroshard"))
        for dims, size in product(ALL_DIMS, SIZES[:1] if quick else SIZES):
            yield placing_row(neuroshard_law(folder / "neuroshard", wider=True), dims, size, quick)


def agreement(name: str, predicted: Sequence[float], measured: Sequence[float]) -> Row:
    """The median ratio of figures of one class, with its spread and whether both rank alike."""
    ratios = np.divide(predicted, measured)
    text = f"{name}: predicted / measured, median of {len(ratios)} (spread {math.exp(np.log(ratios).std()):.2f}, "
    text += f"{ratios.min():.2f} to {ratios.max():.2f}"
    if len(set(measured)) > 2:
        text += f"; rank correlation {scipy.stats.spearmanr(predicted, measured)[0]:.3f}"
    return row(text + ")", float(np.median(ratios)), "")


def kernel_times() -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Predicted and measured microseconds of every time that is modelled, by GPU and kind."""
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for path in sorted(TIMES.parent.glob("tbe*.csv")):  # and those of `tests.gpu.check`
        for given in csv.DictReader(path.read_text().splitlines()):
            if kind := kind_of(given):
                predicted_us = 1e6 * predicted_s(given, PRESETS[TAKEN_FOR.get(given["gpu"], given["gpu"])])
                times.setdefault((given["gpu"], kind), []).append((predicted_us, float(given["time_us"])))
    return times


def trace_rows(path: Path) -> Iterator[Row]:
    """Kernels of the A100's trace; lookups are taken for even."""
    spec, tables, batch_size = PRESETS["a100-40gb"], tables_of(TRACED), int(TRACED["B"])
    sums = table_loads(tables, batch_size, "fp32", "rowwise_adagrad").sum(dim=0).numpy()
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    kernels = [(event["name"], event["dur"]) for event in events if event.get("cat") == "kernel"]
    steps = sum("codegen_forward_unweighted" in name for name, _ in kernels)
    for kind, (predict, pattern) in KERNELS.items():
        measured_us = sum(duration for name, duration in kernels if re.search(pattern, name)) / steps
        predicted_us = 1e6 * predict(roofline.figures_of(spec, batch_size), sums)
        name = f"A100 trace, {kind}: {measured_us:.0f} us a step, predicted / measured"
        yield row(name, predicted_us / measured_us, "")


def law_rows(law: NeuroShardLaw) -> Iterator[Row]:
    """Devices of random placements of 10 to 60 tables, and all-to-alls, by the law and by the RTX 2080 Ti."""
    pool, generator = meta_tables("meta-dlrm-2021", "mixed"), torch.Generator().manual_seed(0)
    ours, theirs = table_loads(pool, BATCH).numpy(), law.loads(pool)
    num_bytes = PlacementTask(pool, 1, 0).table_bytes.numpy()
    devices: list[list[int]] = []
    widths = []
    for _ in range(250):
        count = int(torch.randint(10, 61, (1,), generator=generator))
        drawn = torch.randperm(len(pool), generator=generator)[:count].numpy()
        device = torch.randint(DEVICES, (count,), generator=generator).numpy()
        widths.append(np.bincount(device, pool.dim.numpy()[drawn], DEVICES))
        devices += [drawn[device == d].tolist() for d in range(DEVICES)]
    inside = [shards for shards in devices if 1 < len(shards) <= 15 and num_bytes[shards].sum() <= MOST_BYTES]
    law_ms = np.array([sum(law.compute_ms(theirs[shards].sum(axis=0))) for shards in inside])
    sums = np.stack([ours[shards].sum(axis=0) for shards in inside])
    ours_ms = 1e3 * roofline.operators_s(roofline.figures_of(RTX2080TI, BATCH), sums).sum(axis=1)
    yield agreement("law of four GPUs, devices", ours_ms, law_ms)
    sent = VECTOR_BYTES * BATCH * torch.from_numpy(np.stack(widths))  # [N, 4]
    exchange_s = collective_s(sent.amax(dim=1), DEVICES, RTX2080TI, DEVICES, mean_bytes=sent.mean(dim=1))
    exchanged_ms = [law.exchange_ms(width).max(axis=0).sum() for width in widths]
    yield agreement("law of four GPUs, all-to-alls there and back", 2e3 * exchange_s.numpy(), exchanged_ms)


def placing_row(law: NeuroShardLaw, dims: Dims, size: Size, quick: bool) -> Row:
    """Savings over the heuristic that is best on these tasks, by the preset alone and by annealing on the law."""
    tasks = draw_tasks(Cell(0, quick).pools()[1], size, 4 if quick else 8, seed=200)
    if dims == "dim16":
        narrow = torch.full((size.tables,), 16)
        tasks = [replace(task, tables=replace(task.tables, dim=narrow)) for task in tasks]
    placers = baselines() | {"prior": RooflinePlacer(RTX2080TI, columns=False)}
    costs = {name: fmean(law.true_ms(task, placer.place(task)) for task in tasks) for name, placer in placers.items()}
    least_ms, placed_ms = fmean(annealed_ms(law, task, MOVES) for task in tasks), costs.pop("prior")
    best = min(costs, key=lambda name: costs[name])
    saved, annealed = (100 * (1 - reached_ms / costs[best]) for reached_ms in (placed_ms, least_ms))
    text = f"law of four GPUs, {dims}, {size}, {len(tasks)} tasks: saved over {best} without training"
    text += " (reference: annealing on the law)"
    return {"name": text, "value": saved, "unit": "%", "reference": annealed, "ratio": saved / annealed}


def kind_of(given: Mapping[str, str]) -> str | None:
    """Rows in host memory, or a call so small that the host's launches decide, or an operation; None if not modelled."""
    notes, op = given["notes"], given["op"]
    if "UVM" in notes:  # while a cache fills, as in the source, it misses more than a full one
        return "update of rows in host memory" if op == "bwd" else None
    if "not evaluated" in notes or "host-bound" in notes:  # of TorchRec's module on its host, not of the operator
        return None
    if given["gpu"] == "b200":
        return "small calls"
    return {"fwd": "forward", "bwd": "update without sort" if "atomic" in notes else "backward"}.get(op, "both")


def predicted_s(given: Mapping[str, str], spec: AcceleratorSpec) -> float:
    """Seconds of the kernel or of the call, as the source measured."""
    notes, batch_size, tables = given["notes"], int(given["B"].split(",")[0]), tables_of(given)
    both = given["op"] == "fwd+bwd"
    precision = "fp16" if given["dtype_weights"] == "fp16" else "fp32"
    figures = roofline.figures_of(spec, batch_size)
    sums = table_loads(tables, batch_size, precision, "rowwise_adagrad" if both else "sgd").sum(dim=0)  # [K]
    if "optimizer adam" in notes:
        sums[roofline.UPDATE_BYTES] *= ADAM_ROWS
    # A benchmark repeats one call, so the cache still holds a share of its rows.
    moved = math.inf if "cold caches" in notes else float(sums[roofline.STREAM_BYTES] + sums[roofline.FIRST_BYTES])
    sums[roofline.FIRST_BYTES] *= 1 - min(1.0, spec.cache_bytes / moved)
    if "atomic" in notes:  # before FBGEMM sorted, every lookup read its row and added to it
        update_s = 2 * float(sums[roofline.READ_BYTES]) / (roofline.UPDATE_SHARE * spec.memory_bytes_per_s)
        return update_s + float(sums[roofline.GRAD_BYTES]) / (roofline.BANDWIDTH_SHARE * spec.memory_bytes_per_s)
    if given["op"] == "fwd" and ("nvprof" in notes or "kernel only" in notes):
        return roofline.forward_kernel_s(figures, sums.numpy())
    if "UVM" in notes:
        return host_update_s(notes, sums, int(given["D"]), figures)
    forward_s, backward_s = roofline.forward_s(figures, sums.numpy()), roofline.backward_s(figures, sums.numpy())
    return {"fwd": forward_s, "bwd": backward_s, "fwd+bwd": forward_s + backward_s}[given["op"]]


def host_update_s(notes: str, sums: Tensor, dim: int, figures: np.ndarray) -> float:
    """Seconds of the update with Adam's moments in host memory, and the rows too unless they are cached."""
    row_bytes = sums[roofline.UNIQUE] * dim * BYTES_PER_WEIGHT["fp32"]
    cached = "CACHING" in notes
    moved = (0 if cached else 1) + (ADAM_ROWS - 1 if "optimizer adam" in notes else 0)
    on_device = sums.clone()
    on_device[roofline.UPDATE_BYTES] = 2 * row_bytes * cached
    on_device[roofline.HOST_STATE_BYTES] = moved * row_bytes
    return float(roofline.backward_s(figures, on_device.numpy()))


def tables_of(given: Mapping[str, str]) -> Tables:
    """The tables of a measurement, with the statistics expected of its distribution of lookups."""
    count, notes = int(given["T"]), given["notes"]
    rows_of, dims, pooling = (np.resize([*map(float, given[key].split(","))], count).tolist() for key in "EDL")
    bag = re.search(r"mean bag about ([\d.]+)", notes)
    pooling = [float(bag[1])] * count if bag else pooling
    lookups = [factor * int(given["B"].split(",")[0]) for factor in pooling]
    power = POWER if "avg distinct rows" in notes else 0.0
    rows = np.stack([_expected_rows(int(size), total, power) for size, total in zip(rows_of, lookups, strict=True)])
    unique = rows.sum(axis=1)
    sizes, factors = torch.tensor([rows_of, dims]).long(), torch.tensor(pooling, dtype=torch.float64)
    counts = (values.round().long() for values in (torch.tensor(lookups), torch.from_numpy(unique)))
    names, bins = tuple(f"table-{index}" for index in range(count)), torch.from_numpy(rows / unique[:, None]).float()
    return Tables(names, *sizes, factors, bins, *counts)


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
    keep = [sizes != size for size in sizes]
    curves = [fit_link_curve(np.array([2]), sizes[others], times_us[None, others], 2) for others in keep]
    predicted = [float(curve_s(curve, torch.tensor(size).double())) for curve, size in zip(curves, sizes, strict=True)]
    return np.abs(1e6 * np.array(predicted) / times_us - 1).tolist()
