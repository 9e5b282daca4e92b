"""Prefect's servers of one database file start one after another, whichever commands start them.

At its start a server creates or upgrades its database and registers its types of blocks. Two servers that do so at the
same time fail on what the other has just written. Each server holds the lock itself, so the lock is free once the server is
gone, also when a command was killed and its server is still ending. SQLite undoes what a killed server had half done: each
of Prefect's migrations is a transaction. Databases of a team, such as PostgreSQL, are left to those who run them.
"""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamshard.files.locks import locked

if TYPE_CHECKING:
    from fastapi import FastAPI

_IS_ALONE = "starts_alone"  # attribute of what runs an application


def one_start_at_a_time() -> None:
    """Let servers that this process makes from now on wait, at their start, until no other one of their database starts."""
    from prefect.server.api import server

    make = server.create_app

    @wraps(make)
    def create_app(*args: Any, **kwargs: Any) -> "FastAPI":
        app, path = make(*args, **kwargs), database_file()
        whole = app.router.lifespan_context
        if path is None or hasattr(whole, _IS_ALONE):  # Prefect gives the same application for the same settings
            return app

        @asynccontextmanager
        async def alone(app: "FastAPI") -> AsyncIterator[Any]:
            async with AsyncExitStack() as running:
                with locked(path.with_name(f"{path.name}.lock"), f"another server of {path} starts"):
                    state = await running.enter_async_context(whole(app))
                yield state

        setattr(alone, _IS_ALONE, True)
        app.router.lifespan_context = alone
        return app

    vars(server)["create_app"] = create_app


def database_file() -> Path | None:
    """The file of the database that a server of this process would use; None if it is no file on this machine.

    Raises:
        ValueError: this user may not write it or its folder.
    """
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
    from sqlalchemy.engine import make_url

    url = make_url(PREFECT_API_DATABASE_CONNECTION_URL.value())
    if url.get_backend_name() != "sqlite" or not url.database or ":memory:" in url.database:
        return None
    path = Path(url.database).absolute()
    for needed in (path.parent, *([path] if path.exists() else [])):
        if needed.exists() and not os.access(needed, os.W_OK):
            raise ValueError(
                f"Prefect's database {path} cannot be written by this user, so no flow can run here; let the owner of "
                f"{needed} run it, or point --home at a folder you may write"
            )
    return path
