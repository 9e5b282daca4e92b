import os

from storage.filesystem import list_files
from storage.lake import catalog
from storage.lake.parquet_files import compact, parts, read_parquet, write_parquet
from tests.helpers.lake import append_samples, query
from tests.helpers.samples import make_sample


def test_queries_read_each_row_once_whatever_happens_to_files(settings, lake, task, version):
    def measured(first: int, last: int):
        for n in range(first, last):
            append_samples(lake, [make_sample(task, [0, 1, 0], ms=1.0 + n)], f"run {n}", 1, version)

    def counted() -> tuple[int, int, int]:
        """Rows, which all queries agree on, compacted files that count, and other files."""
        of_all = f"where testbed = 'simulated:h100' and dataset_version = '{version}'"
        (row,) = query(settings, f"select count(*) as n, count(distinct sample_id) as once from rounds {of_all}")
        assert row["n"] == row["once"] == query(settings, "select count(*) as n from rounds")[0]["n"]
        return (row["n"], *map(len, parts(lake.root, "cost_samples")))

    measured(0, 63)
    catalog.write_catalog(settings)
    assert counted() == (63, 0, 63)
    measured(63, 70)
    catalog.write_catalog(settings)
    assert counted() == (70, 1, 0)
    measured(70, 73)
    assert counted() == (73, 1, 3)
    (first,) = list_files(lake.root / "compacted", "*/*.parquet")
    kept, files = first.read_bytes(), list_files(lake.root / "cost_samples", "**/*.parquet")
    files[0].unlink()  # as `prune` does
    assert counted() == (72, 0, 72), "the compacted file has a row that is gone"
    write_parquet(files[1], read_parquet(files[1]).slice(0, 0))
    os.utime(files[2])
    compact(lake.root)
    assert counted() == (71, 1, 0)
    first.write_bytes(kept)
    (first.parent / "damaged.parquet").write_bytes(kept[:99])
    assert counted() == (71, 1, 0)
    compact(lake.root)
    assert len(list_files(lake.root / "compacted", "*/*.parquet")) == 1
