"""Many files of one cost sample each, written without the lake's syncs and locks."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dreamshard.tasks import PlacementTask
from dreamshard.workloads import dataset_version
from storage.lake import Lake, schemas
from storage.lake import rows as records
from storage.lake.parquet_files import partition
from tests.helpers.samples import four_tables, make_sample


def write_sample_files(lake: Lake, count: int, *, files_per_run: int = 10) -> Path:
    """Write `count` samples of two devices, numbered by their ids, of runs of `files_per_run` iterations each."""
    tables = four_tables()
    version = dataset_version(tables)
    lake.write_dataset(tables, version, "by hand")
    sample = make_sample(PlacementTask(tables, 2, 10**6), [0, 1, 0, 1])
    rows = records.sample_to_rows(sample, run_key="", iteration=0, dataset_version=version)
    folder = partition(lake.root / "cost_samples", testbed=rows[0]["testbed"], dataset_version=version)
    assert isinstance(folder, Path)
    folder.mkdir(parents=True)
    made = pa.Table.from_pylist(rows, schema=schemas.MEASUREMENTS)
    for i in range(count):
        run, iteration, name = f"run{i // files_per_run}", i % files_per_run + 1, f"{i:016x}"
        own = {"sample_id": name, "run_key": run, "iteration": iteration}
        for column, value in own.items():
            at = made.schema.get_field_index(column)
            made = made.set_column(
                at, schemas.MEASUREMENTS.field(at), pa.array([value] * 2, schemas.MEASUREMENTS.field(at).type)
            )
        pq.write_table(
            made, folder / f"{run}.{iteration:04}.{name}.parquet", compression="zstd", write_page_checksum=True
        )
    return folder
