"""The inputs of a cell on real CPU ranks: fbgemm's operators and real all-to-alls, which also judge the placements.

200 of Meta's 2021 tables of at most 64 MiB, with generated lookups of 2,048 samples, so that two ranks fit any machine. Half
of them are for training, a quarter for choices, a quarter for the test.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from dreamshard.files.locks import measuring
from dreamshard.files.scratch import scratch_folder
from dreamshard.sweep.design import Cell
from dreamshard.sweep.inputs import PLACED_SEED, TRAINING_SEED, TRAINING_TASKS, CellInputs
from dreamshard.sweep.judges import MeasuredCosts
from dreamshard.sweep.tables import Size, Split
from dreamshard.tables import Tables, concatenate
from dreamshard.task_sampling import sample_tasks, split_tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.cluster.testbed import ClusterTestbed
from dreamshard.testbeds.fused_op import require_fbgemm
from dreamshard.workloads import LookupFiles, WorkloadConfig, open_workload, statistics, write_lookups

TESTBED = "cluster:cpu"
_NUM_TABLES, _MAX_TABLE_BYTES, _BATCH = 200, 64 * 2**20, 2048
_MEMORY_BYTES = 2**34  # of a device: all placements fit


def check_cells(cells: Sequence[Cell]) -> None:
    """Check before hours of work that this machine can run the cells that measure.

    Raises:
        ValueError: fbgemm is not installed.
    """
    measured = [cell for cell in cells if cell.is_measured]
    if not measured:
        return
    try:
        require_fbgemm()
    except ValueError as error:
        raise ValueError(
            f"{len(measured)} cells of the sweep measure on real ranks, which this machine cannot: {error}; or leave these "
            "cells out with --no-real-ranks"
        ) from error


@contextmanager
def on_real_ranks(cell: Cell) -> Iterator[CellInputs]:
    """The inputs of a cell on `cluster:cpu`; no other process of this host measures meanwhile, and the ranks end with it."""
    with scratch_folder() as folder, measuring():
        tables, lookups = _workload(cell, folder)
        setup = TestbedSetup(num_devices=cell.trained.devices, batch_size=_BATCH, lookups=lookups, seed=cell.seed)
        testbed = ClusterTestbed(setup, "cpu")
        try:
            yield CellInputs(
                testbed=testbed,
                judge=MeasuredCosts(testbed, cell.seed),
                pool=_part(tables, "train"),
                training=_tasks(tables, "train", cell.trained, TRAINING_TASKS, TRAINING_SEED),
                heldout=lambda size: _tasks(tables, cell.split, size, cell.tasks_of(size), PLACED_SEED),
                batch_size=_BATCH,
            )
        finally:
            testbed.close()


def _workload(cell: Cell, folder: Path) -> tuple[Tables, LookupFiles]:
    """All tables, and their lookups as files."""
    dim = 16 if cell.dims == "dim16" else "mixed"
    config = WorkloadConfig(
        source=cell.source, num_tables=_NUM_TABLES, max_table_bytes=_MAX_TABLE_BYTES, batch_size=_BATCH, dim=dim
    )
    parts: list[Tables] = []
    paths: dict[str, Path | str] = {}
    for table in open_workload(config).tables():
        paths[table.name] = folder / f"{len(paths)}.parquet"
        write_lookups(paths[table.name], table.lookups)
        parts.append(statistics(table))
    return concatenate(parts), LookupFiles(paths, _BATCH)


def _part(tables: Tables, split: Split) -> Tables:
    train, rest = split_tables(tables, torch.Generator().manual_seed(0))
    validation, test = split_tables(rest, torch.Generator().manual_seed(1))
    return {"train": train, "validation": validation, "test": test}[split]


def _tasks(tables: Tables, split: Split, size: Size, count: int, seed: int) -> list[PlacementTask]:
    generator, name = torch.Generator().manual_seed(seed), f"real-{split}-{size}"
    part = _part(tables, split)
    return sample_tasks(part, count, size.tables, size.devices, _MEMORY_BYTES, generator, name=name)
