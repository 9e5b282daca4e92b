"""Opens a source of tables by its name: a bundled workload, a file, or a folder or bucket in one of two layouts.

- A list: one `tables.csv`, `tables.parquet` or `tables.json`, and `<table>.parquet` next to it for each table with recorded
  lookups: one column `indices`, a list per training sample. Names of files are escaped as in a URL: `a/b` is
  `a%2Fb.parquet`. All these files hold the same samples; other tables get Zipf lookups.
- Data files, each a batch of the same tables. Only the newest is read: the last by name, with numbers compared as numbers.
  `NAME.tables.csv` next to a data file lists its tables in the file's order. Without it, Criteo's logs have the sizes of a
  bundled list; otherwise a table has as many rows as its largest index needs, and 16 columns.

Files with other names are ignored. A source is at a path or any address that fsspec reads. A person's own function is a
source, too, `model.py:make_model` or `package.model:make_model`.
"""

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import quote

import fsspec
from fsspec.implementations.local import LocalFileSystem

from dreamshard.files import did_you_mean, first_line, json_digest, reading
from dreamshard.tables import ModelTable
from dreamshard.workloads.lookups import Lookups, RecordedFile, open_arrays, open_criteo, open_tensors, read_lookups
from dreamshard.workloads.table_list import list_tables
from dreamshard.workloads.workload import (
    META_WORKLOADS,
    UNKNOWN_DIM,
    Workload,
    WorkloadConfig,
    bundled_lists,
    bundled_workloads,
    listed_workload,
    open_meta,
)

Reader = Callable[[Path, int], RecordedFile]
"""Opens a path; the number is of the samples that are needed."""

DATA_FILES: dict[str, tuple[Reader, str | None]] = {
    r".+\.pt(\.gz)?": (open_tensors, None),
    r".+\.np[yz]": (open_arrays, None),
    r"day_\d+(\.tsv)?(\.gz)?": (open_criteo, "mlperf-dlrm-dcnv2"),
    r"(.+\.tsv|train\.txt)(\.gz)?": (open_criteo, "criteo-kaggle"),
}
"""Name of a file -> its reader, and the bundled list of its tables' sizes unless a list is next to it."""

LISTS = ("tables.csv", "tables.parquet", "tables.json")
_KINDS = ".pt, .npy, .npz, .tsv, train.txt, day_0, .csv, .parquet, .json"
_REFERENCE = re.compile(r"(?P<place>.*\.py|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)")


def known_as(source: str) -> str:
    """The one spelling of a source by which dreamshard knows it.

    Paths become absolute, a function's too; symbolic links stay, since they may point elsewhere tomorrow. A bundled
    workload's name stays, even if a file has that name: `./criteo-kaggle` is the file.
    """
    source = source.strip()
    if "://" in source:
        return source.rstrip("/")
    place, colon, name = source.rpartition(":") if is_function(source) else (source, "", "")
    is_path = place.endswith(".py") if colon else "/" in place or "." in place or Path(place).exists()
    if is_path and source not in bundled_workloads():
        place = os.path.abspath(Path(place).expanduser())  # noqa: PTH100 - `resolve` would follow links
    return f"{place}{colon}{name}"


def open_workload(config: WorkloadConfig) -> Workload:
    """Open the source that `config.source` names; lookups are read or drawn on demand.

    Raises:
        ValueError: there is no such workload, file or folder, a file is wrong, or there are too few tables.
    """
    if config.source in META_WORKLOADS:
        return open_meta(config)
    folder, name, tokens = files = _find(config.source)
    if not (known := _data_file(name)):
        with local_folder(folder, name) as local:
            return _with_lookups_beside(config, files, list_tables(local / name))
    reader, usual = known
    beside = tokens.keys() - {name}
    with local_folder(folder, name, *beside) as local:
        file = reader(local / name, config.batch_size)
        if beside or usual:
            listed = list_tables(local / min(beside) if beside else bundled_lists()[str(usual)])
        else:
            listed = [ModelTable(f"t{t:04}", rows, UNKNOWN_DIM) for t, rows in enumerate(file.least_rows())]
    if len(listed) != file.num_tables:
        raise ValueError(
            f"{_list_of(name)} lists {len(listed)} tables, but {name} holds {file.num_tables}; give one line per table in "
            "the file's order"
        )
    guessed = f"as many rows as their largest index needs, and by default {UNKNOWN_DIM} columns"
    note = (
        f"no list of tables is next to {name}: tables have {f'the sizes of the bundled list {usual}' if usual else guessed}; "
        f"to give others, write {_list_of(name)} with name, rows and dim"
    )
    position = {table.name: t for t, table in enumerate(listed)}

    def lookups(table: ModelTable, samples: int) -> Lookups:
        return file.lookups(position[table.name], table.rows, samples)

    tokens_of, notes = dict.fromkeys(position, json_digest(files)), () if beside else (note,)
    return listed_workload(config, listed, lookups, tokens_of, file.num_samples, notes)


def change_token(source: str) -> str:
    """A token that changes with any file of the source; files are listed, not read. A ValueError says that it is missing."""
    return source if source in META_WORKLOADS else json_digest(_find(source))


class _Found(NamedTuple):
    """The files of a source.

    Attributes:
        folder: path or address of the folder.
        name: of the file that is read: a list of tables, or a data file.
        tokens: change tokens of this file and of neighbouring files that belong to it, by name.
    """

    folder: str
    name: str
    tokens: Mapping[str, str]


def _find(source: str) -> _Found:
    """The files of a source: itself, a folder's list, or its newest data file; a ValueError says that there is none."""
    address = str(bundled_lists().get(source, source)).rstrip("/")
    with _reaching(source):
        system, path = fsspec.core.url_to_fs(address)
        system.invalidate_cache()  # fsspec caches listings, but the source may have changed
        folder, _, name = (f"{address}/" if system.isdir(path) else address).rpartition("/")
        files = [path, _list_of(path)] if name else system.ls(path, detail=False)
        # the checksum of a file by its store, or otherwise of all that the store says of it
        tokens = {file.rpartition("/")[2]: str(system.checksum(file)) for file in sorted(files) if system.isfile(file)}
    if not name:
        lists, data = [file for file in tokens if file in LISTS], [file for file in tokens if _data_file(file)]
        if len(lists) > 1:
            raise ValueError(f"{source} holds {' and '.join(lists)}; keep the one list of tables that is meant")
        if lists:
            return _Found(folder, lists[0], tokens)
        if not data:
            raise ValueError(
                f"{source} holds neither a list of tables ({', '.join(LISTS)}) nor data files ({_KINDS}); it holds "
                f"{', '.join([*tokens][:5]) or 'no files'}"
            )
        newest = max(
            data, key=lambda file: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", file)]
        )
        return _find(f"{address}/{newest}")  # day_9 before day_10
    if name not in tokens:
        raise ValueError(
            f"there is no workload or file {source!r}{did_you_mean(source, bundled_workloads())}; give a file, folder, "
            "bucket or bundled workload (docs/own-tables.md), or model.py:make_model"
        )
    if not _data_file(name) and not name.endswith((".csv", ".parquet", ".json")):
        raise ValueError(f"{source} is a file whose name says nothing of its content; name it as one of {_KINDS}")
    return _Found(folder, name, tokens)


def _with_lookups_beside(config: WorkloadConfig, files: _Found, listed: list[ModelTable]) -> Workload:
    """The tables of a list, with the lookups recorded next to it."""
    file_of = {table.name: f"{quote(table.name, safe='')}.parquet" for table in listed}
    beside = {file for file in files.tokens if file.endswith(".parquet")} - {*LISTS}
    recorded = {name: files.tokens[file] for name, file in file_of.items() if file in beside}
    if len(recorded) < min(len(beside), len(listed)):
        raise ValueError(
            f"{files.folder} holds {min(beside - {*file_of.values()})}, but no table of its list has that name; name the "
            f"files after the tables, such as {min({*file_of.values()} - beside)}"
        )

    def read(file: str) -> Lookups:
        with local_folder(files.folder, file) as local:
            return read_lookups(local / file)

    def lookups(table: ModelTable, samples: int) -> Lookups:
        found = read(file_of[table.name])
        if found.batch_size < samples:
            raise ValueError(
                f"{file_of[table.name]} holds {found.batch_size} samples, fewer than the {samples} of the other tables; "
                "record the same samples for every table"
            )
        return found.first(samples)

    num_samples = read(file_of[next(iter(recorded))]).batch_size if recorded else 0
    return listed_workload(config, listed, lookups, recorded, num_samples)


@contextmanager
def local_folder(folder: str, *names: str) -> Iterator[Path]:
    """Yield a folder; of a remote one a copy of these files, or of all, for the block. Errors name the folder."""
    with _reaching(folder):
        system, path = fsspec.core.url_to_fs(folder)
    if isinstance(system, LocalFileSystem):
        yield Path(folder if "://" not in folder else path)
        return
    with TemporaryDirectory() as copies:
        with _reaching(folder):
            files = [f"{path}/{name}" for name in names] or filter(system.isfile, system.ls(path, detail=False))
            for file in files:
                system.get_file(file, f"{copies}/{file.rpartition('/')[2]}")
        try:
            yield Path(copies)
        except ValueError as error:
            raise ValueError(str(error).replace(copies, folder)) from error


def _reaching(source: str) -> AbstractContextManager[None]:
    """Advice on a file system of an unknown kind, out of reach, or that refuses access."""
    advice = "check the address, that you may read it, that its store is up and that its package is installed"
    return reading(source, "cannot be read", advice)


def _list_of(data_file: str) -> str:
    """The list of a data file's tables, which may be next to it: of day_0.gz, day_0.tables.csv."""
    return re.sub(r"(\.pt|\.np[yz]|\.tsv|\.txt)?(\.gz)?$", "", data_file) + ".tables.csv"


def _data_file(name: str) -> tuple[Reader, str | None] | None:
    """The reader and usual list of a data file of this name; None for other files."""
    return next((known for pattern, known in DATA_FILES.items() if re.fullmatch(pattern, name)), None)


def is_function(source: str) -> bool:
    """Whether a source is written as a function in a file or module."""
    return _REFERENCE.fullmatch(source) is not None


def call(source: str, consequence: str, *arguments: object) -> Any:
    """The function's result; its folder is added to the import path, as when Python runs the file.

    A ValueError says that there is none, or repeats its error, with the `consequence`: `there is no model`.
    """
    match = _REFERENCE.fullmatch(source)
    if match is None:
        raise ValueError(f"{source!r} names no function, so {consequence}; give FILE.py:FUNCTION or MODULE:FUNCTION")
    place = match["place"]
    is_file = place.endswith(".py")
    folder = str(Path(place).absolute().parent if is_file else Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that nothing installed is hidden
    try:
        module = _imported(place) if is_file else importlib.import_module(place)
        if not hasattr(module, name := match["function"]):
            raise NameError(f"there is no function {name}")
        return getattr(module, name)(*arguments)
    except (Exception, SystemExit) as error:
        kind, text = type(error).__name__, first_line(error)
        detail = kind if text == kind else f"{kind}: {text}"
        raise ValueError(f"{source} raises {detail}, so {consequence}; correct it, --debug shows where") from error


def _imported(place: str) -> ModuleType:
    """A file as a module of its own name, or of another if that is taken."""
    file = Path(place).absolute()
    loaded = sys.modules.get(file.stem)
    is_free = loaded is None or loaded.__file__ == str(file)
    spec = importlib.util.spec_from_file_location(file.stem if is_free else f"{file.stem}_of_{abs(hash(file))}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for dataclasses and pickles of its own
    spec.loader.exec_module(module)
    return module
