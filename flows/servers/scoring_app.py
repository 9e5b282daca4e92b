"""MLflow's scoring server behind limits and a login: `python -m flows.servers.scoring_app FOLDER ...` serves a version.

It imports nothing of `dreamshard`: a version is served by the copy of the library that was saved with it.
"""

import argparse
import json
import os
from dataclasses import asdict
from typing import Any

import uvicorn

from flows.servers.prompt_connections import PromptConnection
from flows.servers.scoring_limits import RequestLimits, limited
from flows.servers.scoring_work import StoppableModel
from storage.asgi import Application
from storage.login import guarded

SETTINGS = "DREAMSHARD_SERVING"
MODEL = "DREAMSHARD_SERVED_MODEL"  # its folder
HEALTH = ("/health", "/ping")  # what answers without a login
_AT_ONCE = 256  # connections; more are answered with 503


def environment(limits: RequestLimits, *, pages: bool, login: str | None) -> dict[str, str]:
    """What `application` is told by the process that starts it; in no argument, which all users of the machine can read."""
    return {SETTINGS: json.dumps({"limits": asdict(limits), "pages": pages, "login": login})}


def application() -> Application:
    """The application of one process of the server, with the model loaded."""
    from mlflow.pyfunc import scoring_server

    load: Any = scoring_server.load_model_with_mlflow_config
    settings = json.loads(os.environ[SETTINGS])
    model: Any = StoppableModel(load(os.environ[MODEL]))
    served = limited(scoring_server.init(model), RequestLimits(**settings["limits"]), pages=settings["pages"])
    return guarded(served, settings["login"], HEALTH) if settings["login"] else served


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(prog="python -m flows.servers.scoring_app", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", help="all files of the version, which nobody else may write")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    os.environ[MODEL] = given.folder
    uvicorn.run(
        f"{__spec__.name}:application",
        factory=True,
        host=given.host,
        port=given.port,
        workers=given.workers,
        limit_concurrency=_AT_ONCE,
        http=PromptConnection,
        access_log=False,  # a line for each request would fill the disk in time
    )


if __name__ == "__main__":
    main()
