"""Measure fused operators on one GPU beside its preset; every figure is a line of `tests/benchmarks/data/tbe.csv`'s format.

    python -m tests.gpu.check [--device cpu] [--minutes 10] [--out FOLDER]

Stages, each until its share of the time is over: fused operators; devices of the emulated testbed; placements of one device;
predicted over measured. Lines are on disk as soon as they are measured. `python -m tests.benchmarks presets` reads the file
once it is `tests/benchmarks/data/tbe_GPU.csv`. `--device cpu` takes the same path with tiny tables, by fbgemm's CPU build.
"""

import argparse
import csv
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch

from dreamshard.constraints import ANY_SHARDING
from dreamshard.hardware.accelerator import PRESETS, AcceleratorSpec, preset_of
from dreamshard.placement import Placement, TableSharding
from dreamshard.shards import Shards
from dreamshard.tables import Tables, concatenate
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.device import Device, device_model
from dreamshard.testbeds.emulated import EmulatedTestbed
from dreamshard.testbeds.operators import VALUE, RankOperators, require_fbgemm, require_operators
from dreamshard.workloads import Lookups, WorkloadTable, statistics
from tests.benchmarks.bench_presets import POWER, kind_of, predicted_s

COLUMNS = "gpu op T E D L B dtype_weights dtype_out index_distribution time_us source notes".split(" ")  # noqa: SIM905
STAGES = {"operators": 0.6, "emulated": 0.8, "placements": 0.95}
"""Shares of the time at whose end each stage stops, or its measurement in progress ends."""
CACHED_SHARE, POOLING, MOST_TABLES = 0.2, 10, 15
BATCHES = 4  # looked up in turn, so that the caches of tables in host memory do not hold all of one
UNIFORM, POWER_LAW = "uniform", f"power law alpha={POWER}"


class Size(NamedTuple):
    """Sizes of what is measured."""

    batch_size: int
    rows: int
    tables: int
    placements: int
    repeats: int


SIZES = {"cpu": Size(64, 500, 2, 3, 3), "cuda": Size(65_536, 1_000_000, 8, 20, 20)}


class Check:
    """Measures on one device, and writes each figure at once."""

    def __init__(self, device: str, spec: AcceleratorSpec, gpu: str, minutes: float, out: Path) -> None:
        require_fbgemm()
        self.spec, self.gpu, self.size, self.type = spec, gpu, SIZES[device], device
        self.began, self.seconds, self.lines = time.monotonic(), 60 * minutes, list[dict[str, Any]]()
        self.lookups: dict[str, Lookups] = {}
        source = self.lookups.__getitem__
        self.setup = TestbedSetup(num_devices=4, batch_size=self.size.batch_size, lookups=source, repeats=5)
        self.random, self.count = np.random.default_rng(0), 0
        self.device = Device(self.setup, torch.device(device))
        self.file = out / f"tbe_{gpu}.csv"
        out.mkdir(parents=True, exist_ok=True)
        self.write(COLUMNS, "w")

    def write(self, cells: list[Any], mode: str = "a") -> None:
        """A line of the file."""
        with self.file.open(mode, newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(cells)

    def add(self, op: str, ms: float, task: PlacementTask, distribution: str, notes: str, tables: Tables) -> None:
        """Write a time of tables on one device."""
        columns = [values.tolist() for values in (tables.rows, tables.dim, tables.pooling_factor)]
        sizes = [",".join(f"{value:g}" for value in (each if len(set(each)) > 1 else each[:1])) for each in columns]
        notes = f"{notes}; optimizer {task.optimizer}"
        if distribution != UNIFORM:
            notes += f"; avg distinct rows per step {int(tables.unique_rows.sum())} of {int(tables.lookups.sum())}"
        cells = [
            self.gpu,
            op,
            len(tables),
            *sizes,
            self.size.batch_size,
            task.precision,
            "fp32",
            distribution,
            1e3 * ms,
        ]
        self.lines.append(dict(zip(COLUMNS, map(str, [*cells, "tests/gpu/check.py", notes]), strict=True)))
        self.write(list(self.lines[-1].values()))

    def drawn(self, rows: int, count: int, distribution: str) -> np.ndarray:
        """Rows of so many lookups; by the power law row x is looked up in proportion to (x + 1) ** -POWER."""
        share = self.random.random(count)
        if distribution == UNIFORM:
            return (rows * share).astype(np.int32)
        most = (rows + 1.0) ** (1 - POWER)
        return np.minimum((1 + share * (most - 1)) ** (1 / (1 - POWER)) - 1, rows - 1).astype(np.int32)

    def tables(self, rows: list[int], dims: list[int], pooling: list[int], distribution: str = UNIFORM) -> Tables:
        """Tables with new names, whose lookups are drawn."""
        self.lookups.clear()
        found = []
        for size, dim, length in zip(rows, dims, pooling, strict=True):
            self.count += 1
            ids = torch.from_numpy(self.drawn(size, self.size.batch_size * length, distribution))
            lookups = Lookups(ids, torch.arange(self.size.batch_size + 1) * length)
            self.lookups[f"table-{self.count}"] = lookups
            found.append(statistics(WorkloadTable(f"table-{self.count}", size, dim, lookups)))
        return concatenate(found)

    def operators(self) -> Iterator[None]:
        """One operator of equal tables at a time; what this device or its libraries cannot run is left out."""
        laws, mixed = (UNIFORM, POWER_LAW), ("sgd", "rowwise_adagrad", "adam")
        cases = [*product(("fp32", "fp16"), mixed, (64,), laws, (None,))]
        cases += product(("fp32", "fp16"), mixed, (64,), (POWER_LAW,), (CACHED_SHARE,))
        cases += product(("fp32",), ("sgd",), (16, 128, 256), laws, (None,))
        count = self.size.tables
        for precision, optimizer, dim, law, share in cases:
            tables = self.tables([self.size.rows] * count, [dim] * count, [POOLING] * count, law)
            task = PlacementTask(
                tables, 1, 2**50, precision, optimizer, constraints=replace(ANY_SHARDING, caching=True)
            )
            sharding = TableSharding("table_wise", where=(0,), cached_share=share)
            shards = Shards.of(task, Placement((sharding,) * count, 1, 1))
            try:
                require_operators(shards, self.type)
                forward_ms, backward_ms = self.times_ms(shards, law)
            except (ValueError, RuntimeError) as error:
                print(f"left out: {error}", flush=True)
                continue
            where = f"LXU cache over UVM, MANAGED_CACHING, cfr={share}" if share else "HBM"
            notes = f"{where}; cold caches, launches hidden; median of {self.size.repeats}"
            self.add("fwd", forward_ms, task, law, notes, tables)
            if optimizer == "rowwise_adagrad":  # as `bench_presets` reads them
                self.add("fwd+bwd", forward_ms + backward_ms, task, law, notes, tables)
            else:
                self.add("bwd", backward_ms, task, law, notes, tables)
            yield

    def times_ms(self, shards: Shards, distribution: str) -> tuple[float, float]:
        """Medians of forward and backward."""
        (operator,), tables = RankOperators(shards, self.device, 0).operators, shards.tables
        batches = [operator.lookups.indices]
        for _ in range(BATCHES - 1):
            drawn = [
                self.drawn(rows, count, distribution)
                for rows, count in zip(tables.rows.tolist(), tables.lookups.tolist(), strict=True)
            ]
            batches.append(torch.from_numpy(np.concatenate(drawn)).to(batches[0]))
        times, timed = [], self.device.cold
        for i in range(BATCHES + self.size.repeats):
            vectors, forward_ms = timed(partial(operator.module, batches[i % BATCHES], operator.lookups.offsets))
            times.append((forward_ms, timed(partial(vectors.backward, torch.full_like(vectors, VALUE)))[1]))
        forward_ms, backward_ms = np.median(times[BATCHES:], axis=0).tolist()
        return forward_ms, backward_ms

    def placements(self, num_devices: int) -> Iterator[None]:
        """Random placements of random tables by the emulated testbed; a line for each device and way."""
        bed, random = EmulatedTestbed(self.setup, self.type, self.spec), self.random
        for _ in range(self.size.placements):
            count = int(random.integers(num_devices, 1 + MOST_TABLES * num_devices))
            rows = np.exp(random.uniform(math.log(self.size.rows / 100), math.log(4 * self.size.rows), count))
            dims, pooling = random.choice([4, 8, 16, 32, 64, 128], count), random.integers(1, 3 * POOLING, count)
            tables = self.tables(*(each.astype(int).tolist() for each in (rows, dims, pooling)))
            device = random.integers(num_devices, size=count)
            task = PlacementTask(tables, num_devices, 2**50)
            sample = bed.measure(task, Placement.whole(device.tolist(), num_devices))
            for d in np.unique(device).tolist() if sample.infeasible is None else ():
                own = tables.select(np.flatnonzero(device == d).tolist())
                for op, phase in (("fwd", 0), ("bwd", -1)):
                    notes = f"HBM; cold caches; device {d} of {num_devices}; median of {self.setup.repeats}"
                    self.add(op, float(sample.costs.phases_ms[d, phase]), task, UNIFORM, notes, own)
            yield

    def run(self) -> None:
        """All stages; prints what each measured."""
        stages = self.operators(), self.placements(4), self.placements(1)
        for (name, share), stage in zip(STAGES.items(), stages, strict=True):
            before = len(self.lines)
            while time.monotonic() - self.began < share * self.seconds:
                if next(stage, stage) is stage:
                    break
            else:
                print(f"{name}: stopped at its {share * self.seconds:.0f} s", flush=True)
            stage.close()
            print(f"{name}: {len(self.lines) - before} figures in {self.file}", flush=True)
        classes = defaultdict[str, list[tuple[float, float]]](list)
        for line in self.lines:
            if kind := kind_of(line):
                predicted_us = 1e6 * predicted_s(line, self.spec)
                classes[f"{kind}, {line['op']}"].append((predicted_us, float(line["time_us"])))
        for name, pairs in classes.items():
            predicted, measured = np.array(pairs).T
            ranks = scipy.stats.spearmanr(predicted, measured).statistic if len(pairs) > 2 else math.nan
            ratio = np.median(predicted / measured)
            print(f"{name}: {self.spec.name} over {len(pairs)} figures: {ratio:.2f} (median), Spearman {ranks:.3f}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", choices=[*SIZES], default="cuda")
    parser.add_argument("--minutes", type=float, default=10.0, help="stop after these, with what is measured by then")
    parser.add_argument("--preset", choices=[*PRESETS], help="default: the GPU's")
    parser.add_argument("--out", type=Path, default=Path(".benchmarks/gpu"), help="folder of the CSV file")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no NVIDIA GPU; check nvidia-smi, or give --device cpu")
    model = device_model(given.device)
    spec = PRESETS[given.preset] if given.preset else preset_of(model)
    if spec is None:
        parser.error(f"there is no preset of {model}; give --preset")
    Check(given.device, spec, spec.name if given.device == "cuda" else "cpu", given.minutes, given.out).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
