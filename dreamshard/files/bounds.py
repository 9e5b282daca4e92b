"""How much a file or request may ask for, checked before anything is allocated.

Each bound is far above what is in use anywhere that has been published, and low enough that content at the bound still fits
into the memory of a small machine. docs/foreign-files.md lists them.
"""

MOST_TEXT_BYTES = 2**26
"""JSON and CSV: a list of 100,000 tables with all statistics has 49 MB, of which Python makes objects of twice that."""

MOST_YAML_BYTES = 2**20
"""YAML is parsed some 45 times more slowly than JSON; 30,000 pinned tables have half a megabyte."""

MOST_VALUES = 2**22
"""Values in a JSON, YAML or CSV text, those of repeated YAML anchors counted each time they are used."""

MOST_LEVELS = 50
"""Of values inside values; this project's own files have at most six."""

LONGEST_TEXT = 2**16
"""Characters of one value."""

LONGEST_PLAIN = 1000
"""Characters of a YAML value that may mean a number: those of base 60 (`1:30:00`) take time that grows with the square."""

LONGEST_NAME = 1000
"""Characters of a table's name."""

MOST_TABLES = 100_000
"""In a list; published models have up to some thousand."""

MOST_ROWS = 2**54
"""Of a table; of all tables together `MOST_WEIGHTS` is the closer bound."""

MOST_COLUMNS = 2**12
"""Of a table; published dims are at most some hundred."""

MOST_WEIGHTS = 2**57
"""Of all tables together, so that bytes of weights and optimizer state, up to 12 per weight and some per row, fit 64 bits."""

MOST_POOLING = 1e6
"""Mean lookups per sample."""

MOST_FEATURES = 1000
"""That look up one table."""

MOST_COUNT = 2**40
"""Lookups of a batch that a list gives."""

MOST_DRAWN = 2**27
"""Lookups of a table that are drawn by a Zipf law, each of some 40 bytes meanwhile: 2,048 per sample of 65,536."""

MOST_DEVICES = 4096
"""Also of one host."""

MOST_MEMORY_GB = 100_000
"""GiB of one device."""

MOST_LOOKUPS = 2**31
"""Recorded lookups of one table and batch: what one Arrow list array holds."""

FREE_LOOKUPS = 2**25
"""Recorded lookups of one table, however small its file: 512 per sample of 65,536, in half a GiB meanwhile."""

LOOKUPS_PER_BYTE = 100
"""More of them in a larger file: those that are not all the same take some bits each."""

MOST_UNPACKED_BYTES = 2**37
"""Of a gzipped file of lookups: 2**34 indices of 8 bytes."""

FREELY_UNPACKED_BYTES = 2**28
"""Of a gzipped file of lookups, however small it is."""

MOST_UNPACKING = 100
"""Times that a larger one may grow: gzip makes indices of tables with two rows 36 times smaller."""

MOST_MODEL_BYTES = 2**28
"""Of the files of a placer or training state, which have about 2**20."""

MOST_WEIGHTS_HEADER_BYTES = 2**20
"""Of a safetensors file, which says what tensors it has: some thousands of names."""
