"""Which tables were trained on and which were held out, kept for good: `<lake>/halves/<task set>.parquet`.

Small and never pruned: whoever trains on from a placer must know every table that it, or one before it, has learnt from.
"""

import pyarrow as pa

from dreamshard.tasks import TableSplit
from storage.filesystem import Place
from storage.lake.lake import Lake
from storage.lake.parquet_files import read, write

SCHEMA = pa.schema([("name", pa.string()), ("split", pa.string())])
"""One row per table: its name, and `train` or `test`."""


def write_table_split(lake: Lake, tasks: str, halves: TableSplit) -> None:
    """Keep the halves that the task set `tasks` was drawn from, unless they are there."""
    path = _path(lake, tasks)
    if not path.exists():
        rows = [
            {"name": name, "split": split} for split in ("train", "test") for name in sorted(getattr(halves, split))
        ]
        write(path, pa.Table.from_pylist(rows, schema=SCHEMA))


def has_table_split(lake: Lake, tasks: str) -> bool:
    """Whether the halves of a task set are known; not where the lake was emptied."""
    return _path(lake, tasks).exists()


def read_table_split(lake: Lake, tasks: str) -> TableSplit:
    """The halves of a task set.

    Raises:
        ValueError: there are none.
    """
    path = _path(lake, tasks)
    if not path.exists():
        raise ValueError(
            f"there is no {path}, so it is not known which tables were trained on and which were held out of task set "
            f"{tasks}; draw the tasks again with `dreamshard run --full`"
        )
    found = read(path).to_pylist()
    sides = {split: frozenset(row["name"] for row in found if row["split"] == split) for split in ("train", "test")}
    return TableSplit(sides["train"], sides["test"])


def _path(lake: Lake, tasks: str) -> Place:
    return lake.root / "halves" / f"{tasks}.parquet"
