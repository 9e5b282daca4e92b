"""Cost samples on their way into the lake: on disk one by one as they come, in the lake an iteration at a time.

    <lake>/journal/testbed=<t>/dataset_version=<v>/<run>.<iteration>.<sample>.parquet

So a killed process loses nothing that it has measured, and a query opens one file per iteration instead of one per
placement. No reader of the lake looks here: a sample is in the lake or not, and never in it twice.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from dreamshard.costs import CostSample
from storage import records, schemas
from storage.lake import Lake, measurement_place
from storage.parquet_files import exclusive, read, write


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

    settle(lake)
    try:
        yield keep
    finally:
        settle(lake)


def settle(lake: Lake) -> None:
    """Bring all samples of the journal into the lake, whoever left them; stopped half-way, the next call goes on."""
    with exclusive(lake.root / "journal"):
        files = sorted((lake.root / "journal").rglob("*.parquet"))
        rows = [row for file in files for row in read(file).to_pylist()]
        lake.append_measurements(sorted(rows, key=lambda row: (row["created_at"], row["device"])))
        for file in files:
            file.unlink()  # the lake has it; it would be left out there if it came again
