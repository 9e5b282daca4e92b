"""Prefect's server as `prefect server start` runs it, but nearly free while nothing happens, and with pages that keep quiet.

Its background tasks wait in a queue in memory. Prefect looks into it eight times a second, and ten more times for cancelled
tasks, which costs as much as all its other services; there is no setting for this, so `calm` changes it before the server
starts. What is then up to two seconds late is housekeeping, such as marking runs as late or removing the logs of deleted
runs. Flow runs, events and automations do not use this queue.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from flows.servers.starting_alone import one_start_at_a_time
from storage import login

POLL_S = 2.0
CALM: Mapping[str, str] = {
    "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "60",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_LOOP_SECONDS": "60",
    "PREFECT_SERVER_SERVICES_CLEANUP_RECONCILER_LOOP_SECONDS": "60",
    "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "30",
    "PREFECT_SERVER_SERVICES_FOREMAN_LOOP_SECONDS": "60",
    "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT60S",
}
"""How often the server's services look at the database, in seconds; Prefect's defaults are 5 to 15."""

PAGES: Mapping[str, str] = {
    "PREFECT_SERVER_UI_V2_ENABLED": "true",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}
"""Prefect's newer pages, without advertisements; `QUIET` turns their analytics off."""


def calm(poll_s: float = POLL_S) -> None:
    """Let servers of this process look into their queue in memory every `poll_s` seconds."""
    from burner_redis.pubsub import PubSub
    from docket import Worker
    from prefect.server.api import background_workers

    every = timedelta(seconds=poll_s)
    worker = partial(Worker, minimum_check_interval=every, scheduling_resolution=every)
    vars(background_workers)["Worker"] = worker
    at_once = PubSub._queue_get

    async def patient(self: Any, timeout: float | None) -> Any:
        found = await at_once(self, 0.0)
        while found is None and timeout != 0.0:
            await asyncio.sleep(poll_s)
            found = await at_once(self, 0.0)
            if timeout is not None:
                break
        return found

    PubSub._queue_get = patient


def keep_pages_to_this_server() -> None:
    """Let browsers refuse what Prefect's pages of this process would send to hosts other than its API.

    Without analytics (`PREFECT_SERVER_ANALYTICS_ENABLED`) the pages send no events, but ask the analytics company for its
    settings all the same.
    """
    from fastapi import FastAPI, Request, Response
    from prefect.server.api import server
    from prefect.settings import get_current_settings

    make = server.create_ui_app

    def quiet(ephemeral: bool) -> FastAPI:
        app, api = make(ephemeral), urlsplit(get_current_settings().server.ui.api_url or "")
        allowed = f"connect-src 'self' {api.scheme}://{api.netloc} ws://{api.netloc} wss://{api.netloc}"

        @app.middleware("http")
        async def refuse(request: Request, call_next: Any) -> Response:
            response: Response = await call_next(request)
            response.headers["Content-Security-Policy"] = allowed
            return response

        return app

    vars(server)["create_ui_app"] = quiet


def main() -> None:
    """Run `prefect server start` with this process's arguments, such as `--port 4200`, until it is ended.

    `CALM` and `PAGES` hold unless the environment says otherwise; `DREAMSHARD_LOGIN` is the login.
    """
    for name, value in {**CALM, **PAGES}.items():
        os.environ.setdefault(name, value)
    if wanted := login.of_server(os.environ):
        os.environ["PREFECT_SERVER_API_AUTH_STRING"] = wanted
    from prefect.cli import app

    calm()
    keep_pages_to_this_server()
    one_start_at_a_time()
    sys.argv = ["prefect", "server", "start", *sys.argv[1:]]
    app()


if __name__ == "__main__":
    main()
