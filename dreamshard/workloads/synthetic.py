"""Zipf lookups for the tables of a list, bundled or the user's own."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dreamshard.files.bounds import MOST_DRAWN
from dreamshard.files.digests import json_digest
from dreamshard.workloads.config import WorkloadConfig
from dreamshard.workloads.lookups import Lookups, WorkloadTable, index_dtype
from dreamshard.workloads.source import Workload, choose_tables, name_seed, table_dims
from dreamshard.workloads.table_list import ListedTable, list_tables
from dreamshard.workloads.zipf import ALPHA, draw_ranks, scatter


def open_list(config: WorkloadConfig, path: Path) -> Workload:
    """Tables of a list that `list_tables` reads, with Zipf lookups.

    Raises:
        ValueError: the list is wrong or has too few tables.
    """
    listed = list_tables(path)
    chosen = chosen_tables(config, listed)
    return Workload(
        f"{len(chosen)} of the {len(listed)} tables of {path.stem}, Zipf lookups, {config.batch_size} samples",
        tuple(table.name for table in chosen),
        lambda position: zipf_table(chosen[position], config.batch_size, config.seed),
        lambda position: zipf_fingerprint(chosen[position], config.batch_size, config.seed),
    )


def chosen_tables(config: WorkloadConfig, listed: Sequence[ListedTable]) -> list[ListedTable]:
    """The tables of a list that the config asks for, with the dims it asks for.

    A table's dim and lookups depend on its line alone, not on its place in the list.

    Raises:
        ValueError: the list has too few tables.
    """
    names = [table.name for table in listed]
    dims = table_dims(config, len(listed), [table.dim for table in listed], names)
    rows = np.asarray([table.rows for table in listed], dtype=np.int64)
    chosen = choose_tables(config, rows, dims, names=names)
    return [replace(listed[t], dim=int(dims[t])) for t in chosen]


def zipf_fingerprint(table: ListedTable, batch_size: int, seed: int) -> str:
    """The fingerprint of `zipf_table` for the same arguments."""
    return json_digest(["zipf", ALPHA, table.name, table.rows, table.dim, table.pooling_factor, batch_size, seed])


def zipf_table(table: ListedTable, batch_size: int, seed: int) -> WorkloadTable:
    """A table of a list with Zipf lookups.

    Samples have `pooling_factor` lookups, rounded so that the mean holds; one if the list gives none.

    Raises:
        ValueError: these are more lookups than are drawn.
    """
    pooling, rows = 1.0 if table.pooling_factor is None else table.pooling_factor, table.rows
    if pooling * batch_size > MOST_DRAWN:
        raise ValueError(
            f"table {table.name!r} has {pooling:.4g} lookups per sample, {pooling * batch_size:.3g} in a batch of "
            f"{batch_size:,}, more than the {MOST_DRAWN:,} that are drawn; correct pooling_factor, or use a smaller batch"
        )
    generator = np.random.default_rng([seed, 3, name_seed(table.name)])
    offsets = np.floor(np.arange(batch_size + 1) * pooling + 1e-9).astype(np.int64)
    indices = torch.from_numpy(scatter(draw_ranks(rows, int(offsets[-1]), generator, ALPHA), rows, generator))
    return WorkloadTable(table.name, rows, table.dim, Lookups(indices.to(index_dtype(rows)), torch.from_numpy(offsets)))
