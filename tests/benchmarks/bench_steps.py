"""Whole steps without added barriers against their phases, on two idle CPU ranks: which sum of phases is a step's cost?

The phases are measured as everywhere: each operator alone, each collective between two barriers. Then the same step runs
many times in a row, and ranks wait for each other in its collectives only; flushes of the caches are taken off its time.

sum on a device    the slowest device's sum of phases, as published
sum of maxima      each phase of its slowest device, as if all waited for each other after every phase
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from dreamshard.evaluation import mean_rank_correlation
from dreamshard.placement import Placement
from dreamshard.search.baselines import RandomPlacer, baselines
from dreamshard.shards import Shards
from dreamshard.tables import concatenate
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds import TestbedSetup
from dreamshard.testbeds.device import Device
from dreamshard.testbeds.operators import RankOperators
from dreamshard.testbeds.step import Teams, collectives_of, measure_step
from dreamshard.workloads import LookupFiles, WorkloadConfig, open_workload, write_lookups
from dreamshard.workloads import statistics as table_statistics
from dreamshard.workloads.task_sampling import TasksConfig
from flows.runtime.run_locks import measuring
from tests.benchmarks.measuring import Row, row

STEPS, ROUNDS = 30, 2
DEVICES, BATCH = 2, 2048
TASKS = TasksConfig(tables_per_task=20, num_devices=DEVICES, memory_bytes=2**31)
WORKLOAD = WorkloadConfig(num_tables=200, max_table_bytes=256 * 2**20, batch_size=BATCH)
PLACERS = (baselines()["lookup_greedy"], baselines()["size_greedy"], *map(RandomPlacer, range(3)))
Placed = list[tuple[PlacementTask, Placement]]


def rows(quick: bool = False) -> Iterator[Row]:
    """How far each law is from the step, and its rank correlation within a task."""
    with tempfile.TemporaryDirectory() as name, measuring():
        parts, paths = [], {}
        for table in open_workload(WORKLOAD).tables():
            paths[table.name] = Path(name, f"{len(paths)}.parquet")
            write_lookups(paths[table.name], table.lookups)
            parts.append(table_statistics(table))
        lookups, repeats = LookupFiles(paths), 3 if quick else 15
        setup = TestbedSetup(num_devices=DEVICES, batch_size=BATCH, lookups=lookups, repeats=repeats)
        tasks = TASKS.sample(concatenate(parts), 2 if quick else 8, torch.Generator().manual_seed(7), "steps")
        placed = [(task, placer.place(task)) for task in tasks for placer in PLACERS]
        arguments = name, setup, placed, repeats if quick else STEPS
        torch.multiprocessing.start_processes(_rank, arguments, DEVICES, join=True, start_method="spawn")
        found = [np.load(f"{name}/{number}.npz") for number in range(DEVICES)]
        phases_ms = np.stack([each["phases"] for each in found], axis=2)  # [R, S, D, 4]
        step_ms = np.max([each["steps"] for each in found], axis=0)  # [R, S]
    names, step = [task.name for task, _ in placed], step_ms.mean(axis=0)
    yield row(f"{len(placed)} placements of {len(tasks)} tasks: mean step", float(step_ms.mean()), "ms")
    again = {"the step": step_ms, "the sum of phases": phases_ms.sum(axis=-1).max(axis=-1)}  # [R, S]
    for what, (first, second) in again.items():
        yield row(f"{what} again: difference", 200 * float((np.abs(first - second) / (first + second)).mean()), "%")
        yield row(f"{what} again: rank correlation within a task", mean_rank_correlation(first, second, names), "")
    for law, law_ms in laws(phases_ms.mean(axis=0)).items():
        error = 100 * float(np.abs(law_ms / step - 1).mean())
        yield row(f"{law}: {np.mean(law_ms / step):.2f} of the step; difference from it", error, "%")
        yield row(f"{law}: rank correlation within a task", mean_rank_correlation(law_ms, step, names), "")


def laws(phases_ms: np.ndarray) -> dict[str, np.ndarray]:
    """`[S]` milliseconds of a step by each law, from `[S, D, 4]`."""
    return {
        "sum on a device": phases_ms.sum(axis=-1).max(axis=-1),
        "sum of maxima": phases_ms.max(axis=1).sum(axis=-1),
    }


def _rank(number: int, folder: str, setup: TestbedSetup, placed: Placed, count: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=DEVICES)
    device, teams = Device(setup, torch.device("cpu")), Teams(dist.group.WORLD)
    phases, steps = np.zeros((ROUNDS, len(placed), 4)), np.zeros((ROUNDS, len(placed)))
    for again, i in np.ndindex(steps.shape):
        shards = Shards.of(*placed[i])
        timed = measure_step(shards, device, number, teams)
        assert isinstance(timed, np.ndarray), "a placement does not fit"
        phases[again, i] = np.median(timed, axis=0)
        steps[again, i] = _step_ms(shards, device, teams, count)
    np.savez(f"{folder}/{number}.npz", phases=phases, steps=steps)
    dist.barrier()
    dist.destroy_process_group()


def _step_ms(shards: Shards, device: Device, teams: Teams, count: int) -> float:
    """Median wall milliseconds of a step among many in a row, without the flushes."""
    operators = RankOperators(shards, device, teams.everyone.rank())
    collectives = collectives_of(shards, teams, device)
    ends, flushes = [], []
    for _ in range(device.setup.warmups + count + 1):
        operators.forward()
        for there, _ in collectives:
            there()
        for _, back in collectives:
            back()
        operators.backward()
        ends.append(time.perf_counter())
    dist.barrier()
    for _ in range(count):
        began = time.perf_counter()
        device.flush()
        flushes.append(time.perf_counter() - began)
    steps = np.diff(ends)[-count:]
    return 1e3 * float(np.median(steps) - 2 * len(operators.operators) * np.median(flushes))
