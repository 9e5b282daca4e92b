"""Noise and speed of testbeds: real CPU ranks on the default workload, and the simulated model.

    python -m tests.benchmarks.bench_testbeds [--measurements 20]

The spread is that of consecutive measurements of one placement, including the effect of other load on the machine.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch

from dreamshard.hardware.accelerator import PRESETS, hardware
from dreamshard.hardware.loads import table_loads
from dreamshard.hardware.roofline import phase_costs
from dreamshard.placement import Placement
from dreamshard.tables import Tables, concatenate
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds import TestbedSetup, open_testbed
from dreamshard.testbeds.cluster import ClusterTestbed
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.workloads import LookupFiles, WorkloadConfig, open_workload, statistics, write_lookups

BATCH = 2048
NUM_TABLES = 20
PER_MINUTE_BAR = 60.0  # 100 measurements for training and 140 for evaluation in four minutes
SPREAD_BAR = 0.07  # thread CPU time varies by 3-7 %
PLACEMENTS_PER_S_BAR = 50_000.0  # long annealing


def rows(num_measurements: int = 20) -> list[dict[str, Any]]:
    """All rows; `ratio` above 1 beats the bar."""
    with tempfile.TemporaryDirectory() as name:
        tables, lookups = _workload(Path(name))
        return [*_cluster_rows(tables, lookups, num_measurements), *_simulated_rows(tables)]


def _workload(folder: Path) -> tuple[Tables, LookupFiles]:
    """The default recipe's tables, and their lookups as files."""
    config = WorkloadConfig(num_tables=NUM_TABLES, max_table_bytes=64 * 2**20, batch_size=BATCH)
    parts, paths = [], {}
    for table in open_workload(config).tables():
        paths[table.name] = folder / f"{len(paths)}.parquet"
        write_lookups(paths[table.name], table.lookups)
        parts.append(statistics(table))
    return concatenate(parts), LookupFiles(paths, BATCH)


def _cluster_rows(tables: Tables, lookups: LookupFiles, num_measurements: int) -> list[dict[str, Any]]:
    bed = open_testbed("cluster:cpu", TestbedSetup(num_devices=2, batch_size=BATCH, lookups=lookups))
    assert isinstance(bed, ClusterTestbed)
    task = PlacementTask(tables, num_devices=2, memory_bytes=2**34)
    placement = Placement.whole(torch.arange(len(tables)) % 2, 2)
    start = time.perf_counter()
    bed.measure(task, placement)
    first_s = time.perf_counter() - start
    start = time.perf_counter()
    samples = [bed.measure(task, placement) for _ in range(num_measurements)]
    per_minute = 60 * num_measurements / (time.perf_counter() - start)
    memory = max(psutil.Process(pid).memory_info().rss for pid in bed.ranks.pids())
    bed.close()
    phases = torch.stack([sample.costs.phases_ms().max(dim=0).values for sample in samples])  # [N, 4]
    compute, comm = phases[:, [0, 3]].sum(dim=1), phases[:, [1, 2]].sum(dim=1)
    overall = torch.tensor([sample.overall_ms for sample in samples])
    return [
        _row("cluster: overall cost of one placement", float(overall.median()), "ms"),
        _row("cluster: spread of overall over measurements", _spread(overall), "IQR/median", SPREAD_BAR, less=True),
        _row("cluster: spread of compute", _spread(compute), "IQR/median", SPREAD_BAR, less=True),
        _row("cluster: spread of communication (wall)", _spread(comm), "IQR/median"),
        _row("cluster: measurements per minute, 20 tables x 2 ranks", per_minute, "/min", PER_MINUTE_BAR),
        _row("cluster: first measurement, ranks starting", first_s, "s"),
        _row("cluster: memory of a rank", memory / 2**20, "MiB"),
    ]


def _simulated_rows(tables: Tables) -> list[dict[str, Any]]:
    found = []
    for name in PRESETS:
        setup = TestbedSetup(num_devices=1, batch_size=65_536, lookups=LookupFiles({}))
        spec, loads = hardware(name), table_loads(tables, setup.batch_size, "fp16", "sgd")
        single_ms = sum(float(phase_costs(row[None], setup.batch_size, spec).device_ms()) for row in loads)
        fused_ms = float(phase_costs(loads.sum(dim=0, keepdim=True), setup.batch_size, spec).device_ms())
        found.append(_row(f"simulated {name}: {NUM_TABLES} tables fused / alone", fused_ms / single_ms, "ratio"))
    many = concatenate([_renamed(tables, suffix) for suffix in "abc"]).select(range(50))
    device = torch.randint(0, 4, (5000, 50), generator=torch.Generator().manual_seed(0))
    bed = SimulatedTestbed(setup, hardware("rtx2080ti"))
    bed.device_costs(many, device[:100], 4, "fp16")
    start = time.perf_counter()
    bed.device_costs(many, device, 4, "fp16")
    per_s = len(device) / (time.perf_counter() - start)
    found.append(_row("simulated: placements costed, 50x4", per_s, "/s", PLACEMENTS_PER_S_BAR))
    return found


def _renamed(tables: Tables, suffix: str) -> Tables:
    return replace(tables, names=tuple(f"{name}-{suffix}" for name in tables.names))


def _spread(values: torch.Tensor) -> float:
    low, middle, high = torch.quantile(values, torch.tensor([0.25, 0.5, 0.75])).tolist()
    return (high - low) / middle


def _row(name: str, value: float, unit: str, bar: float | None = None, *, less: bool = False) -> dict[str, Any]:
    ratio = None if bar is None else (bar / value if less else value / bar)
    return {"name": name, "value": value, "unit": unit, "bar": bar, "ratio": ratio}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measurements", type=int, default=20)
    torch.set_num_threads(1)
    for row in rows(parser.parse_args().measurements):
        ratio = "" if row["ratio"] is None else f"  bar {row['bar']:g}, ratio {row['ratio']:.2f}"
        print(f"{row['name']:60} {row['value']:12.4g} {row['unit']}{ratio}")
