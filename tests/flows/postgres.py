"""A PostgreSQL server for tests, on a free loopback port."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.ports import free_port

INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
USER, PASSWORD = "dreamshard", "se%cret-that-nobody-may-read"  # a password that an address must escape


@contextmanager
def postgres(script: Path) -> Iterator[str]:
    """`USER:PASSWORD@HOST:PORT` of a server on which `script` has been run, as a container does at its first start."""
    programs = INSTALLED[-1].parent
    folder = Path(tempfile.mkdtemp(prefix="dreamshard-postgres-"))  # another user may not enter pytest's folder
    as_other: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        other = next(found for found in pwd.getpwall() if found.pw_name in ("postgres", "nobody"))
        os.chown(folder, other.pw_uid, other.pw_gid)
        as_other = ["setpriv", f"--reuid={other.pw_uid}", f"--regid={other.pw_gid}", "--clear-groups"]
    (folder / "password").write_text(PASSWORD)
    (folder / "password").chmod(0o644)
    port = free_port()
    data, options = folder / "data", f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"

    def call(program: str, *arguments: str | Path) -> None:
        subprocess.run(
            [*as_other, programs / program, *arguments], check=True, cwd=folder, stdout=subprocess.DEVNULL, timeout=240
        )

    try:
        call("initdb", "-D", data, "-U", USER, "-A", "scram-sha-256", "--pwfile", folder / "password", "--no-sync")
        call("pg_ctl", "-D", data, "-w", "-o", options, "-l", folder / "log", "start")
        try:
            address = f"{USER}:{PASSWORD.replace('%', '%25')}@127.0.0.1:{port}"
            for arguments in (["-c", "create database prefect"], ["-f", str(script)]):
                subprocess.run(
                    [programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", f"postgresql://{address}/postgres", *arguments],
                    check=True,
                    timeout=240,
                )
            yield address
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
