"""Additive loads of shards: bytes and operations of the kernels, summed over the shards of a device.

A table in host memory is looked up in a cache on the device, which is filled before the lookup. Which rows the cache misses
follows from the access-count bins: it holds the rows that are looked up most often, bin by bin. Rows that a batch looks up
once stand for all rows that are looked up so rarely, so they share what is left of the cache evenly with the rows that the
batch does not look up at all:

    misses = sum over bins of rows in the bin x (1 - cached share of the bin)

This assumes a cache that has long been full, and lookups that are drawn alike in every batch. Every row that comes in drives
out one that was updated, which is written back. The optimizer's state is not cached: fbgemm leaves it in host memory, where
the backward pass reads and writes it.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.hardware.links import VECTOR_BYTES
from dreamshard.shards import GRADIENT_BYTES, Shards
from dreamshard.tables import BYTES_PER_ELEMENT_STATE, BYTES_PER_ROW_STATE, NUM_BINS, Tables

SECTOR_BYTES = 32  # the least that L2 fetches from memory (CUDA C++ best practices guide, "Coalesced access")
INDEX_BYTES = 4  # int32 indices
OFFSET_BYTES = 8  # int64 offsets
LONG, LONGEST = 32, 1024  # lookups of a row above which a block of threads sums their gradients, and most of one block
GROUPS = (8, 16, 32)  # threads that share a row where the widest dim is <= 32, <= 64, above (fbgemm's TBE kernels)

# Columns of the loads; each is summed over the shards of a device.
COUNT, DIM, ROWS, LOOKUPS, UNIQUE = range(5)
STREAM_BYTES, READ_BYTES, FIRST_BYTES = range(5, 8)  # forward: indices and outputs; row reads; of these the first ones
GRAD_READ_BYTES, GRAD_BYTES, UPDATE_BYTES = range(8, 11)  # backward: gradient reads; gradients; rows and state written
ABOVE_32, ABOVE_64 = 11, 12  # tables with a dim above 32, above 64
STEPS = 13  # three columns: warp steps with 8, 16, 32 threads a row
HOT_BYTES = STEPS + len(GROUPS)  # 17 columns: bytes of distinct rows, most often looked up first
AGAIN_BYTES = HOT_BYTES + NUM_BINS  # 17 columns: bytes of reads of those rows after the first
HOST_ROW_BYTES = AGAIN_BYTES + NUM_BINS  # before the lookup: rows into the caches, and as many back
HOST_STATE_BYTES = HOST_ROW_BYTES + 1  # backward: optimizer state in host memory, each way
CACHED_LOOKUPS = HOST_ROW_BYTES + 2  # lookups in caches
DENSE_BYTES = HOST_ROW_BYTES + 3  # backward of copies: gradients cleared; read, weights and state rewritten
BAGS = HOST_ROW_BYTES + 4  # vectors that the forward pass writes
BLOCKS = HOST_ROW_BYTES + 5  # backward: blocks of threads that sum the gradients of often read rows

_MIDDLE = torch.tensor([1.0] + [0.75 * 2**j + 0.5 for j in range(1, NUM_BINS)], dtype=torch.float64)  # of bins


def placed_loads(shards: Shards, batch_size: int) -> Float[Tensor, "S L"]:
    """Loads of each shard, in float64.

    Statistics of another batch size are scaled: lookups by the pooling factor, distinct rows by `_distinct_rows`. A block of
    rows looks up its share of the lookups, but writes partial sums for the whole batch. A data-parallel copy looks up its
    share of the batch; its backward pass writes a dense gradient, with which a dense optimizer rewrites all rows.
    `DIM`, which the all-to-all carries, is that of shards `in_all_to_all` alone.
    """
    task, tables = shards.task, shards.tables
    dim, rows, samples = tables.dim.double(), tables.rows.double(), batch_size * shards.batch_share.double()  # [S]
    weight_bytes = task.weight_bytes[shards.table].double()
    quantisation_bytes = (task.row_bytes[shards.table] - BYTES_PER_ROW_STATE[task.optimizer]).double()
    lookups, bags = tables.pooling_factor.double() * samples, tables.vectors.double() * samples
    unique = _distinct_rows(tables, lookups)
    row_bytes = _sectors(dim * weight_bytes + quantisation_bytes)
    grad_bytes = _sectors(dim * VECTOR_BYTES)
    state_bytes = _sectors(dim * BYTES_PER_ELEMENT_STATE[task.optimizer])
    state_bytes += SECTOR_BYTES * (BYTES_PER_ROW_STATE[task.optimizer] > 0)
    copies, in_host = shards.is_any("data_parallel"), shards.in_host

    state_on_device = torch.where(in_host, 0.0, state_bytes)
    hot, again = _reuse(tables, lookups, unique)  # [S, 17]
    reads = 1 + again / hot.clamp(min=1e-12)  # [S, 17], of a row
    columns = {
        COUNT: torch.ones_like(dim),
        DIM: tables.sent_dim * shards.in_all_to_all,
        ROWS: rows,
        LOOKUPS: lookups,
        UNIQUE: unique,
        STREAM_BYTES: lookups * INDEX_BYTES + bags * (OFFSET_BYTES + dim * VECTOR_BYTES),
        READ_BYTES: lookups * row_bytes,
        FIRST_BYTES: unique * row_bytes,
        GRAD_READ_BYTES: lookups * grad_bytes,
        GRAD_BYTES: torch.minimum(lookups, bags) * grad_bytes,
        UPDATE_BYTES: unique * torch.where(copies, grad_bytes, 2 * (row_bytes + state_on_device)),
        ABOVE_32: dim > 32,
        ABOVE_64: dim > 64,
        **{STEPS + i: lookups * (dim / (4 * threads)).ceil() * threads / 32 for i, threads in enumerate(GROUPS)},
        **dict(enumerate((hot * row_bytes[:, None]).T, HOT_BYTES)),
        **dict(enumerate((again * row_bytes[:, None]).T, AGAIN_BYTES)),
        HOST_ROW_BYTES: in_host * (_missed_rows(shards, unique) if in_host.any() else 0) * row_bytes,
        HOST_STATE_BYTES: in_host * unique * state_bytes,
        CACHED_LOOKUPS: in_host * lookups,
        DENSE_BYTES: copies * 2 * (GRADIENT_BYTES * rows * dim + shards.stored_bytes.double()),
        BAGS: bags,
        BLOCKS: (hot * (reads > LONG) * (reads / LONGEST).clamp(min=1)).sum(dim=1),
    }
    return torch.stack([columns[column].double() for column in sorted(columns)], dim=1)


def _missed_rows(shards: Shards, unique: Float[Tensor, " S"]) -> Float[Tensor, " S"]:
    """Distinct rows of a batch that are not in the cache; see the module's docstring."""
    rows = unique[:, None] * _shares(shards.tables).flip(1)  # [S, 17], most often looked up first
    alike = rows.clone()
    alike[:, -1] += shards.tables.rows.double() - unique
    hotter = alike.cumsum(dim=1) - alike
    resident = shards.tables.rows.double() * shards.resident_share.double()
    kept = ((resident[:, None] - hotter) / alike.clamp(min=1)).clamp(min=0, max=1)
    return (rows * (1 - kept)).sum(dim=1)


def _distinct_rows(tables: Tables, lookups: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    """Distinct rows among so many lookups, of a batch larger or smaller than that of the statistics.

    Of a smaller batch it is the expectation: a row that occurs `m` times is in a share `s` of the samples with a
    probability of `1 - (1 - s)^m`. In a larger one, rows that occur once stand for as many more that are as rare.
    """
    share = _shares(tables)
    share[:, 0] += share.sum(dim=1) <= 0  # without bins
    times = (lookups / tables.lookups.double().clamp(min=1))[:, None]  # [T, 1]
    kept = torch.where(times < 1, 1 - (1 - times).clamp(min=0) ** _MIDDLE, 1.0)
    kept[:, 0] = times[:, 0]
    unique = tables.unique_rows.double() * (share * kept).sum(dim=1)
    return torch.minimum(torch.minimum(unique, tables.rows.double()), lookups)


def _reuse(
    tables: Tables, lookups: Float[Tensor, " T"], unique: Float[Tensor, " T"]
) -> tuple[Float[Tensor, "T 17"], Float[Tensor, "T 17"]]:
    """Distinct rows, and repeated reads of them, per access-count bin, most often read first.

    A bin's rows count as its middle, scaled so that all reads add up to the table's lookups.
    """
    share = _shares(tables)
    rows = unique[:, None] * share  # [T, 17]
    unscaled = rows * (_MIDDLE - 1)  # reads after the first
    again = unscaled * ((lookups - unique) / unscaled.sum(dim=1).clamp(min=1e-12)).clamp(min=0)[:, None]
    unbinned = (unscaled.sum(dim=1) <= 0)[:, None] * (lookups - unique).clamp(min=0)[:, None]
    again = again + unbinned * share  # where bins show no reuse but counts do
    return rows.flip(1), again.flip(1)


def _shares(tables: Tables) -> Float[Tensor, "T 17"]:
    """Of the distinct rows in each access-count bin."""
    share = tables.bins.double()
    return share / share.sum(dim=1, keepdim=True).clamp(min=1e-12)


def _sectors(num_bytes: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    return (num_bytes / SECTOR_BYTES).ceil() * SECTOR_BYTES
