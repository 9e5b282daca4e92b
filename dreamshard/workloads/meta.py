"""`meta-dlrm-2021` and `meta-dlrm-2022`: lookups generated to fit the statistics that Meta published of its data sets.

`dlrm.py` reads the data sets themselves. Here, each table of `meta_population.py` gets its number of rows per access
count, scattered over the table, and their lookups in random order over the samples of one batch.
"""

import numpy as np
import torch

from dreamshard.files.digests import json_digest
from dreamshard.workloads.config import WorkloadConfig
from dreamshard.workloads.lookups import Lookups, WorkloadTable
from dreamshard.workloads.meta_population import population
from dreamshard.workloads.meta_statistics import count_laws
from dreamshard.workloads.source import Workload, choose_tables, table_dims
from dreamshard.workloads.zipf import scatter


def open_meta(config: WorkloadConfig) -> Workload:
    """One of the two Meta workloads.

    A subset of the tables is drawn so that it fits the published statistics in proportion. A batch smaller than the
    published one is its first samples.

    Raises:
        ValueError: there are fewer tables of the size asked for, or the batch is larger than the published one.
    """
    name, batch_size, seed = config.source, config.batch_size, config.seed
    tables = population(name)
    if batch_size > tables.batch_size:
        raise ValueError(
            f"{name} has one batch of {tables.batch_size} samples, fewer than the {batch_size} asked "
            f"for; ask for at most {tables.batch_size}"
        )
    dims = table_dims(config, len(tables.rows))
    chosen = choose_tables(config, tables.rows, dims, tables.shares).tolist()

    def table(position: int) -> WorkloadTable:
        t = chosen[position]
        return WorkloadTable(f"t{t:04}", int(tables.rows[t]), int(dims[t]), meta_lookups(name, t, batch_size, seed))

    return Workload(
        f"{len(chosen)} of the {len(tables.rows)} tables of {name}, generated to fit Meta's published statistics, "
        f"{batch_size} samples",
        tuple(f"t{t:04}" for t in chosen),
        table,
        lambda position: json_digest([name, chosen[position], int(dims[chosen[position]]), batch_size, seed]),
    )


def meta_lookups(name: str, t: int, batch_size: int, seed: int) -> Lookups:
    """The first `batch_size` samples of table `t` of data set `name`.

    The order of all lookups of the full batch is random, so its first samples are a draw without replacement.
    """
    tables = population(name)
    rows = int(tables.rows[t])
    generator = np.random.default_rng([seed, 4, t])
    laws = count_laws(name)
    counts = np.concatenate([law.draw(int(n), generator) for law, n in zip(laws, tables.rows_by_bin[t], strict=True)])
    row_of = scatter(np.arange(len(counts)), rows, generator).astype(np.int32)  # [U] distinct
    total = int(counts.sum())
    offsets = _offsets(total, tables.batch_size, generator)[: batch_size + 1]
    num_lookups = int(offsets[-1])
    if num_lookups == total:
        indices = np.repeat(row_of, counts)
        generator.shuffle(indices)
    else:
        drawn = generator.choice(total, num_lookups, replace=False)
        indices = row_of[np.searchsorted(counts.cumsum(), drawn, side="right")]
    return Lookups(torch.from_numpy(indices), torch.from_numpy(offsets))


def _offsets(total: int, batch_size: int, generator: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """`[B+1]` offsets of samples with gamma-distributed lengths that add up to `total`; many samples are empty."""
    weights = generator.standard_gamma(generator.uniform(0.5, 4.0), batch_size)
    ends = np.rint(weights.cumsum() * (total / weights.sum())).astype(np.int64)
    ends[-1] = total
    return np.concatenate(([0], ends))
