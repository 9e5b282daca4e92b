"""Which tables were trained on and which were held out: `<lake>/halves/<task set>.parquet`.

These small files are never removed: a later training must know every table that its placer or an earlier one learned from.
"""

import pyarrow as pa

from dreamshard.task_sets.sampling import TableSplit
from storage.filesystem import AnyPath
from storage.lake.lake import Lake
from storage.lake.parquet_files import read_parquet, write_rows

FOLDER = "halves"  # as homes have it: under another name, tables trained on there would be held out

_SCHEMA = pa.schema([("name", pa.string()), ("split", pa.string())])  # one row per table; the split is train or test


def write_table_split(lake: Lake, tasks: str, split: TableSplit) -> None:
    """Write the split that the task set `tasks` was drawn from, unless it exists."""
    path = _path(lake, tasks)
    if not path.exists():
        rows = [{"name": name, "split": side} for side in ("train", "test") for name in sorted(getattr(split, side))]
        write_rows(path, rows, _SCHEMA)


def has_table_split(lake: Lake, tasks: str) -> bool:
    """Whether the split of a task set is known; it is lost if somebody empties the lake."""
    return _path(lake, tasks).exists()


def read_table_split(lake: Lake, tasks: str) -> TableSplit:
    """The split of a task set.

    Raises:
        ValueError: it is not known.
    """
    if not has_table_split(lake, tasks):
        raise ValueError(
            f"{_path(lake, tasks)} is lost, so it is not known which tables were trained on and which were held out; "
            "restore it, or train from nothing with `dreamshard run --full`"
        )
    rows = read_parquet(_path(lake, tasks)).to_pylist()
    train, test = (frozenset(row["name"] for row in rows if row["split"] == side) for side in ("train", "test"))
    return TableSplit(train, test)


def _path(lake: Lake, tasks: str) -> AnyPath:
    return lake.root / FOLDER / f"{tasks}.parquet"
