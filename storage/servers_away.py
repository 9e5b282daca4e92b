"""What to tell people when Prefect's or MLflow's server does not answer, whichever library noticed."""

import os
from collections.abc import Mapping

_PREFECT = "PREFECT_API_URL"
_MLFLOW = "MLFLOW_TRACKING_URI"
_OF_HTTPX = (
    "ConnectError",
    "ConnectTimeout",
    "ReadError",
    "ReadTimeout",
    "WriteError",
    "RemoteProtocolError",
    "PoolTimeout",
)
_GATEWAY = (502, 503, 504)


def away(error: BaseException | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """What to do about an error that comes from a server that does not answer; None for other errors.

    Only servers that the environment names can be away: others are this process's own.
    """
    while error is not None:
        if environ.get(_PREFECT) and _is_of_prefect(error):
            return _sentence("Prefect's", _PREFECT, environ[_PREFECT])
        if environ.get(_MLFLOW, "").startswith("http") and _is_of_mlflow(error):
            return _sentence("MLflow's", _MLFLOW, environ[_MLFLOW])
        error = error.__cause__ or error.__context__
    return None


def _sentence(whose: str, name: str, address: str) -> str:
    return (
        f"{whose} server at {address} does not answer, so the run could not go on; finished work is kept: start the server "
        f"(or correct {name}), then give the same command again"
    )


def _is_of_prefect(error: BaseException) -> bool:
    """Prefect's client is httpx, which nothing else here uses."""
    package = type(error).__module__.partition(".")[0]
    status = getattr(getattr(error, "response", None), "status_code", None)
    if package in ("httpx", "httpcore"):
        return type(error).__name__ in _OF_HTTPX or status in _GATEWAY
    return (package == "prefect" and status in _GATEWAY) or str(error).startswith("Failed to reach API at")


def _is_of_mlflow(error: BaseException) -> bool:
    """MLflow's client keeps the error of its connection as a part of its own sentence."""
    if type(error).__module__.partition(".")[0] != "mlflow":
        return False
    text = str(error)
    return text.startswith("API request to http") and ("Max retries exceeded" in text or "timeout exception" in text)
