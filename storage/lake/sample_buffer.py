"""Cost samples on their way into the lake: on disk one by one as they come, in the lake an iteration at a time.

    <lake>/journal/testbed=<t>/dataset_version=<v>/<run>.<iteration>.<sample>.parquet

So a killed process loses nothing that it has measured, and a query opens one file per iteration instead of one per
placement. No reader of the lake looks here: a sample is in the lake or not, and never in it twice.

Where the lake lies elsewhere other hosts have samples on their way too, so a run brings in its own alone; what a killed
run has left there waits for the same run to go on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from dreamshard.costs import CostSample
from storage.filesystem import files, remove
from storage.lake import rows as records
from storage.lake import schemas
from storage.lake.lake import Lake, measurement_place
from storage.lake.parquet_files import read_all, write


@contextmanager
def collecting(
    lake: Lake, run_key: str, iteration: int, dataset_version: str
) -> Iterator[Callable[[CostSample], None]]:
    """Gives the function that keeps a sample at once; when the block ends, however it ends, the lake has them all.

    What a killed process has left is in the lake when the block begins.

    Args:
        run_key: of the training, or of the evaluation, that the samples belong to.
        iteration: of that training, from 1; `lake.EVALUATION` for those of an evaluation.
        dataset_version: of the tables that are measured.
    """

    def keep(sample: CostSample) -> None:
        rows = records.sample_to_rows(sample, run_key=run_key, iteration=iteration, dataset_version=dataset_version)
        folder, start = measurement_place(lake.root / "journal", rows[0])
        path = folder / f"{start}.{rows[0]['sample_id']}.parquet"
        write(path, pa.Table.from_pylist(rows, schema=schemas.MEASUREMENTS))

    own = None if isinstance(lake.root, Path) else run_key
    settle(lake, own)
    try:
        yield keep
    finally:
        settle(lake, own)


def settle(lake: Lake, run_key: str | None = None) -> None:
    """Bring samples of the journal into the lake, whoever left them; stopped half-way, the next call goes on.

    Args:
        run_key: only of this training or evaluation; None for all.
    """
    run = "*" if run_key is None else f"{quote(run_key, safe='')}.*"
    with lake.one_writer("journal"):
        found = files(lake.root / "journal", f"testbed=*/dataset_version=*/{run}.parquet")
        rows = [row for table in read_all(found) for row in table.to_pylist()]
        lake.append_measurements(sorted(rows, key=lambda row: (row["created_at"], row["device"])))
        remove(found)  # the lake has them; they would be left out there if they came again
