"""The sample buffer: each new cost sample gets a file at once, and a whole iteration moves into the lake together.

    <lake>/sample_buffer/<testbed>/<dataset version>/<run>.<iteration>.<sample>.parquet

A killed process thus loses no measurement, and a query opens one file per iteration instead of one per placement (about
1 ms each). Readers of the lake do not look into the buffer, and no sample is in the lake twice.

On a shared store other hosts have samples in the buffer too, so a run moves only its own; those of a killed run wait until
that run resumes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pyarrow.compute as pc

from dreamshard.costs import CostSample
from storage.filesystem import AnyPath, list_files, remove
from storage.lake import rows as records
from storage.lake import schemas
from storage.lake.lake import Lake
from storage.lake.merged_samples import read_samples
from storage.lake.parquet_files import content_id, partition, read_parquet_files, write_rows
from storage.lake.rows import Row

FOLDER = "sample_buffer"


@contextmanager
def collecting(
    lake: Lake, run_key: str, iteration: int, dataset_version: str
) -> Iterator[Callable[[CostSample], None]]:
    """Yield a function that saves a sample at once; all of them are in the lake when the block ends, even by an error.

    Samples that a killed process left are moved into the lake first.

    Args:
        run_key: key of the training or evaluation.
        iteration: iteration of the training, from 1; `lake.EVALUATION` for an evaluation.
        dataset_version: dataset of the measured tables.
    """

    last: datetime | None = None

    def save(sample: CostSample) -> None:
        nonlocal last
        rows = records.sample_to_rows(sample, run_key=run_key, iteration=iteration, dataset_version=dataset_version)
        after = (_last_time(lake, rows[0]) if last is None else last) + timedelta(microseconds=1)
        last = max(rows[0]["created_at"], after)  # which orders the samples, also where the clock was set back
        rows = [row | {"created_at": last} for row in rows]
        folder, prefix = measurement_path(lake.root / FOLDER, rows[0])
        write_rows(folder / f"{prefix}.{rows[0]['sample_id']}.parquet", rows, schemas.MEASUREMENTS)

    own_run = None if isinstance(lake.root, Path) else run_key
    _flush(lake, own_run)
    try:
        yield save
    finally:
        _flush(lake, own_run)


def _last_time(lake: Lake, row: Row) -> datetime:
    """When the last sample of a measurement's iteration was measured; long ago if it is the first."""
    folder, _ = measurement_path(lake.root / "cost_samples", row)
    found = read_samples(folder, row["run_key"], row["iteration"], columns=["created_at"])
    times = [pc.max(table.column("created_at")).as_py() for table in found if len(table)]
    return max(times, default=schemas.LONG_AGO)


def append_measurements(lake: Lake, rows: Sequence[Row]) -> None:
    """Write measurements, one row per device, to a new file per testbed, dataset, run and iteration; skip known ones.

    Files are never replaced by longer ones, since a reader may open one between its footer and its pages.
    """
    groups: dict[tuple[AnyPath, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[measurement_path(lake.root / "cost_samples", row)].append(row)
    with lake.one_writer("cost_samples"):
        for (folder, prefix), group in groups.items():
            files = read_samples(folder, group[0]["run_key"], group[0]["iteration"], columns=["sample_id"])
            known = {sample for table in files for sample in table.column("sample_id").to_pylist()}
            new = {(row["sample_id"], row["device"]): row for row in group if row["sample_id"] not in known}
            if new:
                name = f"{prefix}.{content_id(sorted({sample for sample, _ in new}))}.parquet"
                write_rows(folder / name, list(new.values()), schemas.MEASUREMENTS)


def measurement_path(root: AnyPath, row: Row) -> tuple[AnyPath, str]:
    """The folder of a measurement below `root`, and the prefix of its file's name: run and iteration."""
    folder = partition(root, testbed=row["testbed"], dataset_version=row["dataset_version"])
    return folder, f"{quote(row['run_key'], safe='')}.{row['iteration']:04}"


def _flush(lake: Lake, run_key: str | None) -> None:
    """Move the samples of one or all runs into the lake; an interrupted flush is completed by the next one."""
    run = "*" if run_key is None else f"{quote(run_key, safe='')}.*"
    with lake.one_writer(FOLDER):
        files = list_files(lake.root / FOLDER, f"*/*/{run}.parquet")
        rows = [row for table in read_parquet_files(files) for row in table.to_pylist()]
        append_measurements(lake, sorted(rows, key=lambda row: (row["created_at"], row["device"])))
        remove(files)
