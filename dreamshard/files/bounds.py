"""Largest sizes of tables and clusters: sums and products of them fit 64 bits."""

MOST_ROWS = 2**54
"""Of a table; of all tables together `MOST_WEIGHTS` is the closer bound."""

MOST_COLUMNS = 2**12
"""Of a table; published dims are at most some hundred."""

MOST_WEIGHTS = 2**57
"""Of all tables together, so that bytes of weights and optimizer state, up to 12 per weight and some per row, fit 64 bits."""

MOST_POOLING = 1e6
"""Mean lookups per sample."""

MOST_COUNT = 2**40
"""Lookups of a batch that a list gives."""

MOST_DRAWN = 2**27
"""Lookups of a table that are drawn by a Zipf law, each of some 40 bytes meanwhile: 2,048 per sample of 65,536."""

MOST_DEVICES = 4096
"""Also of one host."""

MOST_MEMORY_GB = 100_000
"""GiB of one device."""
