"""Zipf lookups for lists of tables: the shipped ones (see `data/SOURCES.md`) and one's own."""

from functools import partial
from pathlib import Path

import numpy as np
import torch

from dreamshard.workloads.config import WorkloadConfig
from dreamshard.workloads.listed import ListedTable, list_tables
from dreamshard.workloads.lookups import Lookups, WorkloadTable, index_dtype
from dreamshard.workloads.source import Workload, choose_tables, table_dims
from dreamshard.workloads.zipf import ALPHA, draw_ranks, scatter

DATA = Path(__file__).parent / "data"


def shipped_lists() -> list[str]:
    """Names of the shipped table lists."""
    return sorted(file.stem for file in DATA.glob("*.csv"))


def open_list(config: WorkloadConfig, path: Path) -> Workload:
    """Tables of a list with Zipf lookups (alpha 1.05).

    Args:
        config: which of the tables, the batch size and the dims.
        path: a `.csv`, `.parquet` or `.json` that `dreamshard.workloads.csv` reads.

    Raises:
        ValueError: the list is wrong or has too few tables.
    """
    listed = list_tables(path)
    dims = table_dims(config, len(listed), [table.dim for table in listed])
    rows = np.asarray([table.rows for table in listed], dtype=np.int64)
    chosen = choose_tables(config, rows, dims)
    return Workload(
        f"{len(chosen)} of the {len(listed)} tables of {path.stem}, Zipf lookups, {config.batch_size} samples",
        tuple(listed[t].name for t in chosen),
        partial(_zipf_table, listed, dims.tolist(), chosen.tolist(), config),
    )


def zipf_lookups(
    rows: int, pooling_factor: float, batch_size: int, generator: np.random.Generator, alpha: float = ALPHA
) -> Lookups:
    """Lookups of a batch: every sample has the pooling factor's number of lookups, rounded so that the mean holds."""
    offsets = np.floor(np.arange(batch_size + 1) * pooling_factor + 1e-9).astype(np.int64)
    ranks = draw_ranks(rows, int(offsets[-1]), generator, alpha)
    indices = torch.from_numpy(scatter(ranks, rows, generator))
    return Lookups(indices.to(index_dtype(rows)), torch.from_numpy(offsets))


def _zipf_table(
    listed: list[ListedTable], dims: list[int], chosen: list[int], config: WorkloadConfig, position: int
) -> WorkloadTable:
    t = chosen[position]
    table = listed[t]
    pooling = 1.0 if table.pooling_factor is None else table.pooling_factor
    generator = np.random.default_rng([config.seed, 3, t])
    return WorkloadTable(
        table.name, table.rows, dims[t], zipf_lookups(table.rows, pooling, config.batch_size, generator)
    )
