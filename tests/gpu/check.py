"""Measure fused operators on one GPU beside its preset; every figure is a line of `tests/benchmarks/data/tbe.csv`'s format.

    python -m tests.gpu.check [--device cpu] [--minutes 10] [--out FOLDER]

Stages, each until its share of the time is over: operators of equal tables; devices of the emulated testbed; placements
of one device; predicted over measured. Lines are on disk as soon as they are measured. `python -m tests.benchmarks presets`
reads the file once it is `tests/benchmarks/data/tbe_GPU.csv`. `--device cpu` takes the same path with tiny tables.
"""

import argparse
import csv
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dreamshard.constraints import ANY_SHARDING
from dreamshard.hardware.accelerator import PRESETS, preset_of
from dreamshard.tables import ModelTable, Optimizer, Placement, Precision, TableSharding, concatenate
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.device import device_model
from dreamshard.testbeds.kinds import EmulatedTestbed
from dreamshard.testbeds.rounds import least
from dreamshard.workloads import Lookups, statistics
from tests.benchmarks.bench_presets import POWER, TIMES, agreement, kind_of, predicted_s

COLUMNS = TIMES.read_text().partition("\n")[0].split(",")
STAGES = {"operators": 0.6, "emulated": 0.8, "placements": 0.95}
"""Shares of the time after which no measurement of a stage begins."""
SIZES = {"cpu": (64, 500, 3), "cuda": (65_536, 1_000_000, 30)}  # batch, rows of a table, placements
UNIFORM, POWER_LAW = "uniform", f"power law alpha={POWER}"
LAWS = UNIFORM, POWER_LAW
POOLING, CACHED_SHARE = 10, 0.1  # a batch looks up more rows than the cache holds


class Case(NamedTuple):
    """Tables on devices; rows, columns and lookups per sample of each."""

    stage: str
    rows: list[int]
    dims: list[int]
    pooling: list[int]
    device: list[int]
    law: str = UNIFORM
    precision: Precision = "fp32"
    optimizer: Optimizer = "sgd"
    cached_share: float | None = None


def cases(rows: int, placements: int, random: np.random.Generator) -> Iterator[Case]:
    """All that is measured, stage by stage."""
    kinds = ("fp32", "fp16"), ("sgd", "rowwise_adagrad", "adam")
    in_memory = *product((64,), LAWS, *kinds), *product((16, 128, 256), LAWS)
    for dim, *how in (*in_memory, *product((64,), (UNIFORM,), *kinds, (CACHED_SHARE,))):
        yield Case("operators", [rows] * 8, [dim] * 8, [POOLING] * 8, [0] * 8, *how)
    for stage, devices in [("emulated", 4)] * placements + [("placements", 1)] * placements:
        count = int(random.integers(devices, 13 * devices))
        sizes = np.exp(random.uniform(math.log(rows / 100), math.log(4 * rows), count)).astype(int).tolist()
        dims, pooling = random.choice([4, 8, 16, 32, 64, 128], count), random.integers(1, 2 * POOLING, count)
        yield Case(stage, sizes, dims.tolist(), pooling.tolist(), random.integers(devices, size=count).tolist())


def drawn(rows: int, count: int, law: str, random: np.random.Generator) -> torch.Tensor:
    """Rows of so many lookups; by the power law row x is looked up in proportion to (x + 1) ** -POWER."""
    share, most = random.random(count), (rows + 1.0) ** (1 - POWER)
    rank = rows * share if law == UNIFORM else (1 + share * (most - 1)) ** (1 / (1 - POWER)) - 1
    return torch.from_numpy(rank.astype(np.int32)).clamp(max=rows - 1)


def lines(case: Case, bed: EmulatedTestbed, gpu: str, random: np.random.Generator) -> Iterator[list[object]]:
    """Measure; yields a line for each device and pass."""
    batch_size, described, lookups = bed.setup.batch_size, [], {}
    for t, (rows, dim, pooling) in enumerate(zip(case.rows, case.dims, case.pooling, strict=True)):
        ids = drawn(rows, batch_size * pooling, case.law, random)
        lookups[f"t{t}"] = Lookups(ids, torch.arange(batch_size + 1) * pooling)
        described.append(statistics(ModelTable(f"t{t}", rows, dim), lookups[f"t{t}"]))
    bed.close()  # the lookups of the last case
    bed.setup = replace(bed.setup, lookups=lookups.__getitem__)
    shardings = tuple(TableSharding("table_wise", where=(d,), cached_share=case.cached_share) for d in case.device)
    constraints, count = replace(ANY_SHARDING, caching=True), 1 + max(case.device)
    task = PlacementTask(concatenate(described), count, 2**50, case.precision, case.optimizer, constraints=constraints)
    sample = least(bed.measure(task, Placement(shardings, count, count)) for _ in range(3))
    if sample.infeasible:
        raise ValueError(f"{sample.infeasible} does not fit")
    where = f"cache over UVM, MANAGED_CACHING, cfr={case.cached_share}" if case.cached_share else "HBM"
    for d in sorted(set(case.device)):
        held = task.tables.select([t for t, device in enumerate(case.device) if device == d])
        columns = [column.tolist() for column in (held.rows, held.dim, held.pooling_factor)]
        sizes = [",".join(f"{value:g}" for value in (part if len(set(part)) > 1 else part[:1])) for part in columns]
        notes = (
            f"{case.stage}; {where}; optimizer {case.optimizer}; cold caches, launches hidden; device {d} of {count}"
        )
        if case.law != UNIFORM:
            notes += f"; avg distinct rows per step {int(held.unique_rows.sum())} of {int(held.lookups.sum())}"
        forward_us, _, _, backward_us = (1e3 * sample.costs.phases_ms[d]).tolist()
        times_us = {"fwd": forward_us, "bwd": backward_us}
        if case.optimizer == "rowwise_adagrad":  # `predicted_s` takes it for the optimizer of both together
            times_us = {"fwd+bwd": forward_us + backward_us}
        for op, time_us in times_us.items():
            cells = [gpu, op, len(held), *sizes, batch_size, case.precision, "fp32", case.law, time_us]
            yield [*cells, "tests/gpu/check.py", notes]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", choices=[*SIZES], default="cuda")
    parser.add_argument("--minutes", type=float, default=10.0, help="stop after these, with what is measured by then")
    parser.add_argument("--preset", choices=[*PRESETS], help="default: the GPU's")
    parser.add_argument("--out", type=Path, default=Path(".benchmarks/gpu"), help="folder of the CSV file")
    given = parser.parse_args(arguments)
    began, random, (batch_size, rows, placements) = time.monotonic(), np.random.default_rng(0), SIZES[given.device]
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no NVIDIA GPU; check nvidia-smi, or give --device cpu")
    model = device_model(given.device)
    if (spec := PRESETS[given.preset] if given.preset else preset_of(model)) is None:
        parser.error(f"there is no preset of {model}; give --preset")
    gpu = "cpu" if given.device == "cpu" else spec.name
    setup = TestbedSetup(num_devices=4, batch_size=batch_size, lookups={}.__getitem__)
    bed, pairs = EmulatedTestbed(setup, given.device, spec), dict[str, list[tuple[float, float]]]()
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / f"tbe_{gpu}.csv").open("w", newline="", buffering=1) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for case in cases(rows, placements, random):
            if time.monotonic() - began >= 60 * given.minutes * STAGES[case.stage]:
                print(f"{case.stage}: out of time", flush=True)
                continue
            try:
                for line in lines(case, bed, gpu, random):
                    writer.writerow(line)
                    named = dict(zip(COLUMNS, map(str, line), strict=True))
                    if kind := kind_of(named):
                        figures = 1e6 * predicted_s(named, spec), float(named["time_us"])
                        pairs.setdefault(f"{case.stage}, {kind}, {named['op']}", []).append(figures)
            except (ValueError, RuntimeError) as error:  # of this device, or of its libraries
                print(f"left out: {error}", flush=True)
    for name, figures in pairs.items():
        line = agreement(f"{name}, {spec.name}", *zip(*figures, strict=True))
        print(f"{line['name']}: {line['value']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
