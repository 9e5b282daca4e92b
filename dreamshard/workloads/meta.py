"""`meta-dlrm-2021` and `meta-dlrm-2022`: lookups generated to fit the statistics that Meta published of its data sets.

`recorded.py` reads the data sets themselves. Here, `data/<name>.parquet` gives each table's rows, and how many of them a
batch looks up once, twice, 3-4 times and so on. These numbers were fitted once (`data/SOURCES.md`).
Each table's rows are scattered over the table, and their lookups over the samples of one batch in random order.
"""

import json
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch

from dreamshard.model_table import ModelTable
from dreamshard.tables import NUM_BINS
from dreamshard.workloads.lookups import Lookups
from dreamshard.workloads.workload import DATA, UNKNOWN_DIM, Workload, WorkloadConfig, listed_workload
from dreamshard.workloads.zipf import scatter

Vector = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
_BINS = tuple(f"rows_in_bin_{j}" for j in range(NUM_BINS))


@dataclass(frozen=True)
class Population:
    """All tables of one data set; `t` is a table's position.

    Attributes:
        batch_size: `B` of the full batch.
        rows: `[T]` hash sizes.
        rows_by_bin: `[T, 17]` number of rows that the full batch looks up (0,1], (1,2], (2,4] ... times.
        laws: of the access counts within each bin, the probability of at most the lowest count, the next one and so on.
    """

    batch_size: int
    rows: Counts
    rows_by_bin: Counts
    laws: tuple[Vector, ...]


def count_law(j: int, batch_size: int, tilt: float) -> Vector:
    """The maximum-entropy law of bin `j` with its mean: probabilities fall exponentially, by `tilt` from first to last."""
    high = 2**j if j < NUM_BINS - 1 else max(2**j, batch_size)  # once per sample at most
    weights = np.exp(-tilt * np.linspace(0, 1, high - 2**j // 2) - max(0.0, -tilt))
    return np.cumsum(weights / weights.sum())


def draw_counts(j: int, law: Vector, num_rows: int, generator: np.random.Generator) -> Counts:
    """Ascending counts of `num_rows` rows of bin `j`, stratified over its law so that their mean is close to its mean."""
    levels = (np.arange(num_rows) + generator.random()) / max(1, num_rows)
    counts: Counts = 2**j // 2 + 1 + np.searchsorted(law[:-1], levels, side="right")
    return counts


@cache
def population(name: str) -> Population:
    """The tables of `meta-dlrm-2021` or `meta-dlrm-2022`."""
    table = pq.read_table(DATA / f"{name}.parquet")
    about = json.loads(table.schema.metadata[b"dreamshard"])
    rows, *bins = (table[column].to_numpy().astype(np.int64) for column in ("rows", *_BINS))
    laws = tuple(count_law(j, about["batch_size"], tilt) for j, tilt in enumerate(about["tilts"]))
    return Population(about["batch_size"], rows, np.stack(bins, axis=1), laws)


def open_meta(config: WorkloadConfig) -> Workload:
    """One of the two Meta workloads; `t0012` is at position 12 of its population. Meta published no dims.

    A batch smaller than the published one is its first samples.

    Raises:
        ValueError: there are fewer tables of the size asked for, or the batch is larger than the published one.
    """
    name, batch_size, seed = config.source, config.batch_size, config.seed
    tables = population(name)
    if batch_size > tables.batch_size:
        raise ValueError(f"{name} has one batch of {tables.batch_size} samples; ask for at most that, not {batch_size}")
    listed = [ModelTable(f"t{t:04}", rows, UNKNOWN_DIM) for t, rows in enumerate(tables.rows.tolist())]

    def lookups(table: ModelTable, samples: int) -> Lookups:
        return meta_lookups(name, int(table.name[1:]), samples, seed)

    return listed_workload(config, listed, lookups, {table.name: [name, seed] for table in listed}, batch_size)


def meta_lookups(name: str, t: int, batch_size: int, seed: int) -> Lookups:
    """The first `batch_size` samples of table `t` of data set `name`.

    The order of all lookups of the full batch is random, so its first samples are a draw without replacement.
    """
    tables = population(name)
    rows = int(tables.rows[t])
    generator = np.random.default_rng([seed, 4, t])
    drawn_of = zip(tables.laws, tables.rows_by_bin[t].tolist(), strict=True)
    counts = np.concatenate([draw_counts(j, law, count, generator) for j, (law, count) in enumerate(drawn_of)])
    row_of = scatter(np.arange(len(counts)), rows, generator).astype(np.int32)  # [U] distinct
    total = int(counts.sum())
    weights = generator.standard_gamma(generator.uniform(0.5, 4.0), tables.batch_size)  # lengths; many are 0
    ends = np.rint(weights.cumsum() * (total / weights.sum())).astype(np.int64)
    ends[-1] = total
    offsets = np.concatenate(([0], ends))[: batch_size + 1]
    num_lookups = int(offsets[-1])
    if num_lookups == total:
        indices = np.repeat(row_of, counts)
        generator.shuffle(indices)
    else:
        drawn = generator.choice(total, num_lookups, replace=False)
        indices = row_of[np.searchsorted(counts.cumsum(), drawn, side="right")]
    return Lookups(torch.from_numpy(indices), torch.from_numpy(offsets))
