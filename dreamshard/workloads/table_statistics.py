"""Statistics of a table from a batch of lookups: 17 bins, distinct rows, pooling factor; and a dataset's version."""

import hashlib
import json

import numpy as np
import numpy.typing as npt
import torch

from dreamshard.tables import NUM_BINS, Tables
from dreamshard.workloads.lookups import WorkloadTable, check_indices

COUNTING_SHARE = 0.5
"""Below this ratio of rows to lookups counting row by row is faster than sorting, as measured."""


def statistics(table: WorkloadTable) -> Tables:
    """`Tables` of one table, from one batch of lookups; bins and pooling factor are float64.

    Raises:
        ValueError: an index is negative or outside the table, or the batch has no samples.
    """
    lookups = table.lookups
    if lookups.batch_size < 1:
        raise ValueError(
            f"table {table.name!r} has a batch without samples, so it has no pooling factor; ingest more samples"
        )
    check_indices(lookups.indices, table.rows, f"table {table.name!r}")
    counts = access_counts(lookups.indices.numpy(), table.rows)
    num_lookups = len(lookups.indices)
    return Tables(
        (table.name,),
        rows=torch.tensor([table.rows]),
        dim=torch.tensor([table.dim]),
        pooling_factor=torch.tensor([num_lookups / lookups.batch_size], dtype=torch.float64),
        bins=torch.from_numpy(bin_counts(counts) / max(1, len(counts)))[None],
        lookups=torch.tensor([num_lookups]),
        unique_rows=torch.tensor([len(counts)]),
    )


def access_counts(indices: npt.NDArray[np.integer], rows: int) -> npt.NDArray[np.int64]:
    """How often each distinct row is looked up; `[U]`, each at least 1."""
    if rows < COUNTING_SHARE * len(indices):
        counts = np.bincount(indices, minlength=1)
        return counts[counts > 0].astype(np.int64, copy=False)
    ordered = np.sort(indices)  # vectorised for 32 and 64 bits
    ends = np.flatnonzero(ordered[1:] != ordered[:-1])  # [U-1] last position of each run but the last
    return np.diff(ends, prepend=-1, append=len(ordered) - 1) if len(ordered) else ends


def bin_counts(counts: npt.NDArray[np.int64], weights: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.float64]:
    """`[17]` sum of `weights`, or number of rows, whose count lies in (0,1], (1,2], (2,4] ... (32768, inf)."""
    bins = np.minimum(np.frexp((counts - 1).astype(np.float64))[1], NUM_BINS - 1)  # bit length of count - 1
    return np.bincount(bins, weights=weights, minlength=NUM_BINS).astype(np.float64)


def dataset_version(tables: Tables) -> str:
    """Content hash of a dataset, 12 hexadecimal digits: the same for the same tables in any order."""
    order = sorted(range(len(tables)), key=tables.names.__getitem__)
    digest = hashlib.sha256(json.dumps([tables.names[t] for t in order]).encode())
    for column in (tables.rows, tables.dim, tables.lookups, tables.unique_rows):
        digest.update(column.to(torch.int64)[order].numpy().tobytes())
    for values in (tables.pooling_factor, tables.bins):
        digest.update(values.to(torch.float64)[order].contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]
