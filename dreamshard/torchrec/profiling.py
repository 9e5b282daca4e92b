"""Profiles of a running job's training steps, for `dreamshard learn`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule
from torchrec.distributed.comm import get_topology_group_world_size

from dreamshard.costs import library_versions
from dreamshard.files import replacing
from dreamshard.torchrec.plans import current_plan
from dreamshard.workloads import ModelTables


@contextmanager
def profiled_steps(
    folder: str | Path, dmp: Any, tables: ModelTables, *, batch_size: int, steps: int = 5
) -> Iterator[profile]:
    """Profile the training steps of a block on each rank, into one folder; call its `step()` after each of `steps` + 3.

    Every rank writes `rank*.json.gz`; rank 0 also `plan.json`, `tables.json` and `job.json`. Nothing is communicated.

    Args:
        folder: of this profile alone: a path on a disk that all ranks share, or an address such as `s3://bucket/monday`.
        dmp: the `DistributedModelParallel` that trains.
        tables: of the model, by `tables_of`, or better by `record` with some batches.
        batch_size: samples of a rank.
        steps: that are profiled.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        listed, versions = [asdict(table) for table in tables.listed], dict(library_versions())
        job = {"model": type(dmp.module).__name__, "batch_size": batch_size * ranks, "versions": versions}
        plan = current_plan(
            dmp.plan, tables.tables, num_devices=ranks, devices_per_host=get_topology_group_world_size()
        )
        for name, text in {"plan": plan.to_json(), "tables": json.dumps(listed), "job": json.dumps(job)}.items():
            with _writing(str(folder), f"{name}.json") as temporary:
                temporary.write_text(text, encoding="utf-8")

    def write(profiler: profile) -> None:
        with _writing(str(folder), f"rank{rank}.json.gz") as temporary:
            profiler.export_chrome_trace(f"{temporary}.gz")  # which compresses by this name
            Path(f"{temporary}.gz").replace(temporary)

    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    # the profiler itself starts in the first three
    when = schedule(skip_first=1, wait=0, warmup=2, active=steps, repeat=1)
    with profile(activities=activities, schedule=when, on_trace_ready=write) as profiler:
        yield profiler


@contextmanager
def _writing(folder: str, name: str) -> Iterator[Path]:
    """Yield a local path for a file, which is in the folder once the block has ended."""
    if "://" not in folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with replacing(Path(folder, name)) as temporary:
            yield temporary
        return
    with TemporaryDirectory() as scratch:
        yield Path(scratch, name)
        files, path = fsspec.core.url_to_fs(folder)
        files.put_file(f"{scratch}/{name}", f"{path}/{name}")
