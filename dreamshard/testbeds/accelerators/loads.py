"""Additive loads of tables: what the kernels read, write and compute for them, summed over the tables of a shard."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.tables import BYTES_PER_ROW_STATE, BYTES_PER_WEIGHT, NUM_BINS, Optimizer, Precision, Tables
from dreamshard.testbeds.accelerators.links import VECTOR_BYTES

SECTOR_BYTES = 32  # the least that L2 fetches from memory (CUDA C++ best practices guide, "Coalesced access")
INDEX_BYTES = 4  # int32 indices
OFFSET_BYTES = 8  # int64 offsets
GROUPS = (8, 16, 32)  # threads that share a row where the widest dim is <= 32, <= 64, above (fbgemm's TBE kernels)
MEMBERSHIP_ENTRIES = 2**22  # of the [B, D, T] membership that is in memory at once

# Columns of the loads; each is summed over the tables of a shard.
COUNT, DIM, ROWS, LOOKUPS, UNIQUE = 0, 1, 2, 3, 4
STREAM_BYTES, READ_BYTES, FIRST_BYTES = 5, 6, 7  # forward: indices and outputs; row reads; of these the first ones
GRAD_READ_BYTES, GRAD_BYTES, UPDATE_BYTES = 8, 9, 10  # backward: gradient reads; gradients; rows and state written
ABOVE_32, ABOVE_64 = 11, 12  # tables with a dim above 32, above 64
STEPS = 13  # three columns: warp steps with 8, 16, 32 threads a row
HOT_BYTES = STEPS + len(GROUPS)  # 17 columns: bytes of distinct rows, most often looked up first
AGAIN_BYTES = HOT_BYTES + NUM_BINS  # 17 columns: bytes of reads of those rows after the first
NUM_LOADS = AGAIN_BYTES + NUM_BINS


def table_loads(tables: Tables, batch_size: int, precision: Precision, optimizer: Optimizer) -> Float[Tensor, "T K"]:
    """Loads of each table, in float64.

    Statistics of another batch size are scaled: lookups by the pooling factor, distinct rows in proportion, at most
    the table's rows.
    """
    double = torch.float64
    dim, rows = tables.dim.to(double), tables.rows.to(double)  # [T]
    lookups = tables.pooling_factor.to(double) * batch_size
    distinct = tables.unique_rows.to(double) / tables.lookups.to(double).clamp(min=1)
    unique = torch.minimum(torch.minimum(lookups * distinct, rows), lookups)
    row_bytes = _sectors(dim * BYTES_PER_WEIGHT[precision])
    state_bytes = SECTOR_BYTES if BYTES_PER_ROW_STATE[optimizer] else 0
    grad_bytes = _sectors(dim * VECTOR_BYTES)

    loads = torch.zeros(len(tables), NUM_LOADS, dtype=double)
    loads[:, COUNT] = 1
    loads[:, DIM] = dim
    loads[:, ROWS] = rows
    loads[:, LOOKUPS] = lookups
    loads[:, UNIQUE] = unique
    loads[:, STREAM_BYTES] = lookups * INDEX_BYTES + batch_size * (OFFSET_BYTES + dim * VECTOR_BYTES)
    loads[:, READ_BYTES] = lookups * row_bytes
    loads[:, FIRST_BYTES] = unique * row_bytes
    loads[:, GRAD_READ_BYTES] = lookups * grad_bytes
    loads[:, GRAD_BYTES] = lookups.clamp(max=batch_size) * grad_bytes
    loads[:, UPDATE_BYTES] = 2 * unique * (row_bytes + state_bytes)
    loads[:, ABOVE_32] = dim > 32
    loads[:, ABOVE_64] = dim > 64
    for i, threads in enumerate(GROUPS):
        loads[:, STEPS + i] = lookups * (dim / (4 * threads)).ceil() * threads / 32
    hot, again = _reuse(tables, lookups, unique)  # [T, 17]
    loads[:, HOT_BYTES:AGAIN_BYTES] = hot * row_bytes[:, None]
    loads[:, AGAIN_BYTES:] = again * row_bytes[:, None]
    return loads


def shard_loads(loads: Float[Tensor, "T K"], device: Int[Tensor, "B T"], num_devices: int) -> Float[Tensor, "B D K"]:
    """Sum the tables' loads per device; negative entries of `device` are not placed yet."""
    at_once = max(1, MEMBERSHIP_ENTRIES // (num_devices * device.shape[1]))
    devices = torch.arange(num_devices)[None, :, None]
    return torch.cat([(part[:, None, :] == devices).to(loads.dtype) @ loads for part in device.split(at_once)])


def _reuse(
    tables: Tables, lookups: Float[Tensor, " T"], unique: Float[Tensor, " T"]
) -> tuple[Float[Tensor, "T 17"], Float[Tensor, "T 17"]]:
    """Distinct rows, and repeated reads of them, per access-count bin, most often read first.

    A bin's rows count as its middle, scaled so that all reads add up to the table's lookups.
    """
    middle = torch.tensor([1.0] + [0.75 * 2**j + 0.5 for j in range(1, NUM_BINS)], dtype=torch.float64)  # [17]
    share = tables.bins.to(torch.float64)
    share = share / share.sum(dim=1, keepdim=True).clamp(min=1e-12)
    rows = unique[:, None] * share  # [T, 17]
    unscaled = rows * (middle - 1)  # reads after the first
    again = unscaled * ((lookups - unique) / unscaled.sum(dim=1).clamp(min=1e-12)).clamp(min=0)[:, None]
    unbinned = (unscaled.sum(dim=1) <= 0)[:, None] * (lookups - unique).clamp(min=0)[:, None]
    again = again + unbinned * share  # where bins show no reuse but counts do
    return rows.flip(1), again.flip(1)


def _sectors(num_bytes: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    return (num_bytes / SECTOR_BYTES).ceil() * SECTOR_BYTES
