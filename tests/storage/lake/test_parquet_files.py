"""Files of the lake say when a disk changed them."""

from random import Random

import pyarrow as pa
import pytest

from storage.lake.parquet_files import read_parquet, read_parquet_files, write_parquet

COSTS = pa.table({"run_key": ["k"] * 4096, "overall_ms": [i / 7 for i in range(4096)]})


@pytest.mark.parametrize("read", [read_parquet, lambda path: read_parquet_files([path])])
def test_a_changed_bit_of_the_numbers_is_refused_with_the_files_name(tmp_path, read):
    path, draw = tmp_path / "costs.parquet", Random(0)
    write_parquet(path, COSTS)
    content = path.read_bytes()
    pages = range(len(content) // 8, len(content) // 2)  # of numbers: between the first page's header and the footer
    for _ in range(50):
        changed = bytearray(content)
        changed[draw.choice(pages)] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"costs\.parquet cannot be read as Parquet"):
            read(path)
