"""The sample buffer: each new cost sample gets a file at once; when the measuring ends, all become one file of the lake.

    <lake>/sample_buffer/<run>.<iteration>.<sample>.parquet

A killed process thus loses no measurement: the run that continues moves what it finds here into the lake. A query opens one
file per iteration instead of one per placement, and one per training that has ended (`merge`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from dreamshard.costs import CostSample
from storage.filesystem import AnyPath, list_files, remove
from storage.lake import rows as records
from storage.lake.lake import Lake
from storage.lake.parquet_files import content_id, hive_folder, read_parquet_files, write_parquet, write_rows
from storage.lake.schemas import datasets

FOLDER = "sample_buffer"
_ORDER = (
    "measurement_id",
    "overall_ms",
    "round",
)  # others slow a machine, never speed it up, so the least round counts


@contextmanager
def collecting(
    lake: Lake, run_key: str, iteration: int, dataset_version: str
) -> Iterator[Callable[[CostSample], None]]:
    """Yield a function that saves a sample at once; all of them are in the lake when the block ends, even by an error.

    Samples that a killed process left of this run and iteration are moved into the lake first.

    Args:
        run_key: key of the training or evaluation.
        iteration: iteration of the training, from 1; `lake.EVALUATION` for an evaluation.
        dataset_version: dataset of the measured tables.
    """
    prefix = f"{quote(run_key, safe='')}.{iteration:04}"

    def save(sample: CostSample) -> None:
        rows = records.sample_to_rows(sample, run_key=run_key, iteration=iteration, dataset_version=dataset_version)
        write_rows(lake.root / FOLDER / f"{prefix}.{rows[0]['sample_id']}.parquet", "cost_samples", rows)

    _flush(lake, prefix)
    try:
        yield save
    finally:
        _flush(lake, prefix)


def append_measurements(lake: Lake, prefix: str, measurements: pa.Table) -> None:
    """Add measurements of one run and iteration, one row per device, to its file, without samples that it has.

    Args:
        prefix: run and iteration, with which the file's name begins.
    """
    first, schema = measurements.slice(0, 1).to_pylist()[0], datasets()["cost_samples"]
    folder = hive_folder(lake.root / "cost_samples", testbed=first["testbed"], dataset_version=first["dataset_version"])
    former, rows = list_files(folder, f"{prefix}.*.parquet"), schema.empty_table()
    for table in (*read_parquet_files(former), measurements):
        is_known = pc.is_in(table.column("sample_id"), rows.column("sample_id").combine_chunks())
        rows = pa.concat_tables([rows, table.filter(pc.invert(is_known)).select(schema.names)])
    target = folder / f"{prefix}.{content_id(sorted(set(rows.column('sample_id').to_pylist())))}.parquet"
    if former != [target]:
        rows = rows.sort_by([(name, "ascending") for name in _ORDER])
        # of each measurement the first
        least = rows.group_by("measurement_id", use_threads=False).aggregate([("sample_id", "first")])
        is_least = pc.is_in(rows.column("sample_id"), least.column("sample_id_first").combine_chunks())
        rows = rows.set_column(schema.names.index("is_least"), "is_least", is_least)
        write_parquet(target, rows.sort_by([("created_at", "ascending"), ("device", "ascending")]))
        remove(file for file in former if file != target)


def merge(lake: Lake, run_key: str) -> None:
    """Make one file of those of a training's iterations, when it ends: a query opens every file."""
    run = quote(run_key, safe="")
    _move(lake, list_files(lake.root / "cost_samples", f"*/*/{run}.[0-9]*.parquet"), f"{run}.all")


def _flush(lake: Lake, prefix: str) -> None:
    """Move the samples of a run and iteration into the lake."""
    _move(lake, list_files(lake.root / FOLDER, f"{prefix}.*.parquet"), prefix)


def _move(lake: Lake, files: Sequence[AnyPath], prefix: str) -> None:
    """Append the rows of files, and remove the files; the next call completes an interrupted one."""
    if files:
        append_measurements(lake, prefix, pa.concat_tables(read_parquet_files(files)))
        remove(files)
