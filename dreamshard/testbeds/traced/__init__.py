"""The testbed `traced`: replays the actual lookups of tables through a model of a GPU's L2 cache; needs no device.

testbed   measures placements; keeps the traces of tables and the costs of shards
tables    everything that is kept of one table: its lookups sorted by row, and its accesses in all kernels
forward   accesses and work of the lookup kernel
backward  accesses and work of the two kernels that sum gradients and update rows
accesses  accesses to the cache in order, and the sampling of cache sets
cache     a set-associative LRU cache with sectored lines
replay    the tables of all devices in the order of the kernels; the sectors that miss
law       seconds from counts

What it shares with `simulated`: the presets' figures, and the curves of measured all-to-alls (`accelerators/links.py`).
What it does not: the loads, the seconds of kernels and every fitted constant of `simulated`, which computes reuse from
access-count bins, and costs from sums over a shard's tables. Here, hits are counted access by access in the order of the
lookups, and costs are bounds of the tables in flight together. No constant is fitted: each is a documented property of the
hardware or the kernels, or is marked as an estimate. Both describe the same kernels, so both know that lookups are sorted in
passes of 8 bits, and that a group of 8, 16 or 32 lanes reads a row; here the table's own width decides which.
"""

from dreamshard.testbeds.traced.testbed import TracedTestbed

__all__ = ["TracedTestbed"]
