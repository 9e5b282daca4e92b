"""Fewer files for queries to open: a compacted file repeats the rows of many small ones.

    compacted/<dataset>/<content>.parquet    rows of 64 files or more, with the columns of their folders

The files stay, and everything but queries reads them, so a killed writer or a removed compacted file loses nothing. A
compacted file lists its sources with their sizes and times. It counts only while all of them are unchanged and in no other
one, as two hosts may compact at once; otherwise queries read the sources until `compact` replaces it.
"""

import json
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq

from storage.filesystem import AnyPath, FileInfo, list_file_infos, list_files, remove
from storage.lake.parquet_files import content_id, datasets, read_parquet_files, write_parquet

_FEWEST = 64  # sources of a compacted file
_SMALL_BYTES = 2**18  # larger files take longer to read than to open


def parts(root: AnyPath, dataset: str) -> tuple[list[AnyPath], dict[str, FileInfo]]:
    """Compacted files that count, and the dataset's files that they do not repeat, by path, size and time."""
    others = {
        f"{str(info.path).removeprefix(str(root))} {info.size_bytes} {info.modified}": info
        for info in list_file_infos(root / dataset, "**/*.parquet")
    }
    counted = []
    for path in list_files(root / "compacted" / dataset, "*.parquet"):
        with suppress(FileNotFoundError, pa.ArrowInvalid), path.open("rb") as file:  # removed since, or damaged
            sources = json.loads(pq.read_schema(file).metadata[b"sources"])
            if others.keys() >= set(sources):
                counted.append(path)
                for source in sources:
                    del others[source]
    return counted, others


def compact(root: AnyPath) -> None:
    """Compact the small files of each dataset, once there are enough, and remove compacted files that do not count."""
    for dataset, schema in datasets().items():
        counted, others = parts(root, dataset)
        remove(path for path in list_files(root / "compacted" / dataset, "*.parquet") if path not in counted)
        sources = [source for source, info in others.items() if info.size_bytes < _SMALL_BYTES]
        if len(sources) >= _FEWEST:
            tables = [schema.empty_table(), *read_parquet_files([others[source].path for source in sources])]
            rows = pa.concat_tables(tables, promote_options="default").select(schema.names)
            target = root / "compacted" / dataset / f"{content_id(sources)}.parquet"
            write_parquet(target, rows.replace_schema_metadata({"sources": json.dumps(sources)}))
