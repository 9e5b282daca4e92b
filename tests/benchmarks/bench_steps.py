"""Whole steps without added barriers against their phases, on two CPU ranks: which sum of phases is a step's cost?

The phases of a placement are measured as everywhere: each operator alone, each collective once both ranks are there. Then the
same step runs many times in a row, and its ranks wait for each other in the collectives only. Caches are flushed before each
operator in both; the time of the flushes is taken off the step. Three laws compete:

sum on a device    the slowest device's sum of phases, as published
sum of maxima      each phase of its slowest device, as if all waited for each other after every phase
compute and comm   the slowest device's compute, and each collective of its slowest device: a rank waits in collectives only,
                   so a device that is slow forward and fast backward makes up for it

The machine must be idle otherwise. It takes ten minutes.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dreamshard.placement import Placement
from dreamshard.search.baselines import RULES_OF_THUMB, RandomPlacer, baselines
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds import TestbedSetup
from dreamshard.testbeds.device import Device, medians
from dreamshard.testbeds.step import Teams, collectives_of, measure_step, operators_of
from tests.benchmarks.bench_kernels import BATCH, DEVICES, tasks_of, workload
from tests.benchmarks.measuring import Row, rank, row

NUM_TASKS, RANDOM_EACH, STEPS = 40, 6, 20


def rows(quick: bool = False) -> Iterator[Row]:
    """Error and rank correlation within a task of each law, and the mean of step over law."""
    with tempfile.TemporaryDirectory() as name:
        pool, lookups = workload(Path(name))
        setup = TestbedSetup(num_devices=DEVICES, batch_size=BATCH, lookups=lookups)
        tasks = tasks_of(pool, 3 if quick else NUM_TASKS, 7, "steps")
        placers = [*(baselines()[rule] for rule in RULES_OF_THUMB), *map(RandomPlacer, range(RANDOM_EACH))]
        placed = [(task, placer.place(task)) for task in tasks for placer in placers]
        file, context = f"{name}/store", torch.multiprocessing.get_context("spawn")
        results: Any = context.SimpleQueue()
        processes = torch.multiprocessing.start_processes(
            _rank, (file, setup, placed, results), DEVICES, join=False, start_method="spawn"
        )
        found = dict(results.get() for _ in range(DEVICES))
        processes.join()
    phases_ms = np.stack([found[d][0] for d in range(DEVICES)], axis=1)  # [S, D, 4]
    step_ms = np.max([found[d][1] for d in range(DEVICES)], axis=0)  # [S]
    names = [task.name for task, _ in placed]
    yield row(f"{len(placed)} placements of {len(tasks)} tasks: mean step", float(step_ms.mean()), "ms")
    for law, law_ms in laws(phases_ms).items():
        error = float(np.abs(law_ms / step_ms - 1).mean())
        yield row(f"{law}: difference from the step", 100 * error, "%")
        yield row(f"{law}: over the step", float((law_ms / step_ms).mean()), "")
        yield row(f"{law}: rank correlation within a task", rank(law_ms, step_ms, names), "")


def laws(phases_ms: np.ndarray) -> dict[str, np.ndarray]:
    """`[S]` milliseconds of a step by each law, from `[S, D, 4]`."""
    comm_ms = phases_ms[..., 1:3].max(axis=1).sum(axis=-1)
    return {
        "sum on a device": phases_ms.sum(axis=-1).max(axis=-1),
        "sum of maxima": phases_ms.max(axis=1).sum(axis=-1),
        "compute and comm": phases_ms[..., [0, 3]].sum(axis=-1).max(axis=-1) + comm_ms,
    }


def _rank(number: int, file: str, setup: TestbedSetup, placed: list[tuple[PlacementTask, Placement]], results) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=number, world_size=DEVICES)
    device, teams, phases, steps = Device(setup, torch.device("cpu")), Teams(dist.group.WORLD), [], []
    for task, placement in placed:
        shards = Shards.of(task, placement)
        phases.append(medians(torch.from_numpy(measure_step(task, shards, device, teams))).numpy())
        steps.append(_step_ms(task, shards, device, teams))
    results.put((number, (np.stack(phases), np.array(steps))))
    dist.barrier()
    dist.destroy_process_group()


def _step_ms(task: PlacementTask, shards: Shards, device: Device, teams: Teams) -> float:
    """Wall milliseconds of a step among many in a row, without the flushes."""
    operators = operators_of(task, shards, device, teams.everyone.rank())
    collectives = collectives_of(shards, teams, device)

    def step() -> None:
        operators.forward()
        for there, _ in collectives:
            there()
        for _, back in collectives:
            back()
        operators.backward()

    for _ in range(device.setup.warmups):
        step()
    dist.barrier()
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    step_ms = 1e3 * (time.perf_counter() - began) / STEPS
    dist.barrier()
    began = time.perf_counter()
    for _ in range(STEPS):
        device.cold(lambda: torch.empty(0))
    flush_ms = 1e3 * (time.perf_counter() - began) / STEPS
    return step_ms - 2 * len(operators.operators) * flush_ms
