"""The lake's files as a query sees them: to read, and below the lake's folder only.

DuckDB denies or allows a folder as a whole, so a folder that a query may read is one that it may write. A query is therefore
given no folder of the lake but this file system, which has no way to write: whatever statement DuckDB comes to accept, it
can change nothing here.
"""

import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from fsspec.spec import AbstractFileSystem

from storage.filesystem import AnyPath, list_file_infos, modification_time

LAKE = "0://"
"""How addresses of the lake's files begin within a query.

Without letters: DuckDB ignores their case where it allows a folder and not where it looks for a file system, so that `LAKE://`
would be allowed as `lake://` is, and be a folder of this machine.
"""

_MAGIC = frozenset("*?[")


class SharedFile:
    """A file that threads read at once: DuckDB's share one handle, and each seeks before it reads.

    Args:
        opening: opens the file to read; called once by each thread.
    """

    def __init__(self, opening: Callable[[], BinaryIO]) -> None:
        self._opening, self._own, self._opened = opening, threading.local(), [opening()]
        self._own.file = self._opened[0]

    def _file(self) -> BinaryIO:
        if not hasattr(self._own, "file"):
            self._own.file = self._opening()
            self._opened.append(self._own.file)
        file: BinaryIO = self._own.file
        return file

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of any file, for this thread."""
        return self._file().seek(offset, whence)

    def tell(self) -> int:
        """As of any file, for this thread."""
        return self._file().tell()

    def read(self, size: int = -1) -> bytes:
        """As of any file, for this thread."""
        return self._file().read(size)

    def close(self) -> None:
        """Close it for all threads."""
        for file in self._opened:
            with suppress(OSError):
                file.close()


class LakeFiles(AbstractFileSystem):  # type: ignore[misc]
    """Reads files below a lake's root; all that changes something is refused."""

    protocol = LAKE.removesuffix("://")
    cachable = False  # else fsspec keeps one instance for the whole process

    def __init__(self, root: AnyPath) -> None:
        super().__init__()
        self._lake = root

    def open(self, path: str, mode: str = "rb", **_options: Any) -> "SharedFile":
        """Open a file to read.

        Raises:
            PermissionError: it would be written, or is not below the root.
        """
        if mode != "rb":
            raise PermissionError(f"{path} is a file of the lake, and a query may not change it")
        file = self._file(path)
        if isinstance(file, Path):
            return SharedFile(lambda: file.open("rb", buffering=0))
        return SharedFile(lambda: file.fs.open(file.path, "rb"))

    def _refuse(self, path: str, *_others: Any, **_options: Any) -> None:
        raise PermissionError(f"{path} is in the lake, and a query may not change it")

    rm = rm_file = rmdir = mv = copy = cp_file = mkdir = makedirs = touch = pipe_file = put_file = _refuse

    def ls(self, path: str, **_options: Any) -> None:
        """Refused: DuckDB lists a folder by `glob` to read it, and by this to empty it."""
        self._refuse(path)

    def glob(self, path: str, **_options: Any) -> list[str]:
        """The addresses of the files that match, sorted.

        Raises:
            PermissionError: the pattern leads out of the root.
        """
        parts = self._parts(path)
        fixed = next((i for i, part in enumerate(parts) if _MAGIC & set(part)), len(parts))
        if fixed == len(parts):
            return [path] if self.isfile(path) else []
        folder = self._lake.joinpath(*parts[:fixed])
        start = f"{folder}".rstrip("/")
        found = list_file_infos(folder, "/".join(parts[fixed:]))  # files alone, as DuckDB itself finds them
        names = (str(info.path).removeprefix(start).lstrip("/") for info in found)
        return [LAKE + "/".join((*parts[:fixed], name)) for name in names]

    def info(self, path: str, **_options: Any) -> dict[str, Any]:
        """Size, kind and time of change of a file or folder.

        Raises:
            FileNotFoundError: there is none.
        """
        file = self._file(path)
        if not isinstance(file, Path):
            return {**file.fs.info(file.path), "name": path}
        status = file.stat()
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "file"
        return {"name": path, "size": status.st_size, "type": kind, "mtime": status.st_mtime}

    def modified(self, path: str) -> datetime:
        """When a file was changed last."""
        return modification_time(self.info(path))

    def _parts(self, path: str) -> list[str]:
        name = path.removeprefix(LAKE)
        parts = [part for part in name.split("/") if part]
        if ".." in parts or name.startswith("/"):
            raise PermissionError(f"{path} is not below the lake's folder, and a query reads nothing else")
        return parts

    def _file(self, path: str) -> AnyPath:
        return self._lake.joinpath(*self._parts(path))
