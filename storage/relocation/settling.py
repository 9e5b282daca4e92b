"""Opening a home: where it lay before, who uses it now, and one rewriting of its addresses after a move or a copy.

Every process that opens a home holds a shared lock on `home.lock` until it ends. The operating system keeps such locks with
the file, so a program that still runs on a folder under its old name is seen under the new one.
"""

import fcntl
import json
import logging
import os
import sqlite3
from collections import OrderedDict
from pathlib import Path

from dreamshard.files.foreign import json_content, reading
from storage.relocation import contents, former_folders
from storage.relocation.addresses import Relocation
from storage.settings import Settings

logger = logging.getLogger(__name__)

_LOCK = "home.lock"
_SERVERS = "up.json"
_MOST_HELD = 32  # a program has one home; tests open many
_held: "OrderedDict[tuple[int, int], int]" = OrderedDict()  # device and inode of a lock -> our handle


def settle(home: Path) -> None:
    """Make what the home's databases and files name the home's present folder, if that is not where it lay before.

    The first opening by a process also renames folders of earlier releases, while no other process uses the home.

    Args:
        home: absolute; where there is no such folder yet, nothing is done.

    Raises:
        ValueError: it was moved, and another process still uses it, or it cannot be rewritten.
    """
    if not home.is_dir():
        return
    names = known_names(home)
    if not names:
        before = contents.folder_of_old_home(home)
        names = [home] if before is None else [before]
        if before in (None, home):
            _record(home, names)
    handle = _open(home)
    if handle is None:  # a home that this user may only read
        if not _is_at(home, names):
            raise ValueError(
                f"the home was moved from {names[0]} to {home} and this user may not write in it, so its addresses "
                "still name the old folder; let its owner open it once, for example with `dreamshard doctor`"
            )
        return
    try:
        _settle(home, names, handle)
    except BaseException:
        os.close(handle)
        raise
    _hold(handle)


def check(settings: Settings) -> tuple[bool, str, str]:
    """Whether the addresses in the home fit its settings, what was found, and what to do; for `doctor`."""
    location = contents.experiment_location(settings.home)
    if not settings.tracking_uri.startswith("sqlite") or location is None or location.startswith("mlflow-artifacts:"):
        return True, "holds no address of model files", ""
    folder = location.rpartition("/")[0]  # without the experiment's own part, a name or MLflow's number
    if folder == settings.artifact_root.rstrip("/"):
        return True, f"model files are kept in {location}", ""
    return (
        False,
        f"model files are kept in {location}, not in {settings.artifact_root}",
        "an experiment keeps the address it began with: set DREAMSHARD_STORE or DREAMSHARD_ARTIFACTS as they were, or "
        "use another --home",
    )


def _settle(home: Path, names: list[Path], handle: int) -> None:
    """Hold the shared lock on `handle` of a home whose addresses name it, after rewriting them where they do not."""
    if not _is_at(home, names):
        _release(handle)
    while not _is_at(home, names):
        if _locked(handle, fcntl.LOCK_EX):
            names = known_names(home) or names  # somebody else may have been faster
            if not _is_at(home, names):
                _move(names, home)
                names = known_names(home)
            break
        if not _locked(handle, fcntl.LOCK_SH):
            fcntl.flock(handle, fcntl.LOCK_SH)  # somebody else is rewriting
        names = known_names(home) or names
        if not _is_at(home, names):
            users = ", ".join(map(str, sorted(_users(handle) - {os.getpid()})))
            raise ValueError(
                f"the home was moved from {names[0]} to {home} while a program still uses it"
                f"{f' (process {users})' if users else ''}, so its addresses cannot be rewritten now; end that program "
                "(`up`, `worker` or a run) and try again, or where both are one folder, mount it under one name everywhere"
            )
    if not _is_held(handle) and former_folders.found(home) and _locked(handle, fcntl.LOCK_EX):
        former_folders.rename(home)
    fcntl.flock(handle, fcntl.LOCK_SH)


def _move(names: list[Path], home: Path) -> None:
    """Rewrite from all names that the folder had to the present one, and record it last."""
    old = [name for name in names if name != home]
    is_copy = (names[0] / contents.RECORD).is_file()
    if names[0].is_dir():  # a copy's record of servers is of those of the original
        (home / _SERVERS).unlink(missing_ok=True)
    try:
        count = contents.rewrite(home, Relocation(old, home))
    except (sqlite3.Error, OSError) as error:
        raise ValueError(
            f"the home was moved from {names[0]} to {home}, but its addresses cannot be rewritten ({error}), so runs "
            "would write into the old folder; make its files writable, or move it back"
        ) from error
    _record(home, [home])
    if is_copy:
        said = "home was copied from %s to %s; %d addresses rewritten in the copy, the original was not touched"
    else:
        said = "home was moved from %s to %s; %d addresses rewritten"
    logger.warning(said, names[0], home, count)


def _is_at(home: Path, names: list[Path]) -> bool:
    """Whether the home is where its record says; another name for the same folder is added to the record."""
    if names[0] == home:
        return True
    try:
        same = names[0].samefile(home)
    except OSError:
        return False
    if same and home not in names:
        names.append(home)
        _record(home, names)
    return same


def known_names(home: Path) -> list[Path]:
    """The folder that the addresses name, then other names that it had; none of a home that has no record.

    Raises:
        ValueError: the record is damaged.
    """
    try:
        content = (home / contents.RECORD).read_bytes()
    except FileNotFoundError:
        return []
    said = (
        home / contents.RECORD,
        "is damaged",
        "so nobody knows whether this home was moved; remove the file if it was never moved",
    )
    record = json_content(content, *said)
    with reading(*said):
        return [Path(record["home"]), *map(Path, record["also"])]


def _record(home: Path, names: list[Path]) -> None:
    """Write the record whole or not at all, unless this user may only read."""
    if not os.access(home, os.W_OK):
        return
    record = {"home": str(names[0]), "also": list(map(str, names[1:]))}
    contents.replace_text(home / contents.RECORD, json.dumps(record))


def _open(home: Path) -> int | None:
    for flags in (os.O_RDONLY, os.O_RDONLY | os.O_CREAT):  # reading is enough to lock a file of another user
        try:
            return os.open(home / _LOCK, flags, 0o644)
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def _locked(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _hold(handle: int) -> None:
    """Keep the shared lock until this process ends; once per home."""
    stat = os.fstat(handle)
    key = (stat.st_dev, stat.st_ino)
    if key in _held:
        os.close(handle)
        return
    _held[key] = handle
    if len(_held) > _MOST_HELD:
        os.close(_held.popitem(last=False)[1])


def _is_held(handle: int) -> bool:
    """Whether this process uses the home already, perhaps in another thread."""
    stat = os.fstat(handle)
    return (stat.st_dev, stat.st_ino) in _held


def _release(handle: int) -> None:
    """Give up what this process holds of the home under its old name."""
    stat = os.fstat(handle)
    ours = _held.pop((stat.st_dev, stat.st_ino), None)
    if ours is not None:
        os.close(ours)


def _users(handle: int) -> set[int]:
    """Processes of this machine that hold the lock, where Linux says so."""
    inode = str(os.fstat(handle).st_ino)
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return set()
    found = [line.split() for line in lines if " FLOCK " in line and "->" not in line]
    return {int(words[4]) for words in found if words[5].rpartition(":")[2] == inode}
