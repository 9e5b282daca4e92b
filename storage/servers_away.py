"""What to tell people when Prefect's or MLflow's server does not answer, whichever library noticed."""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import closing
from urllib.parse import urlsplit

from dreamshard.formatting import without_passwords

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
_WAIT_S = 5.0  # at a command's start: long enough for a server that is just starting anew
_PAUSE_S = 0.5


class ServerAwayError(ConnectionError):
    """A server that the environment names does not answer; the message is a sentence for people."""


def check(environ: Mapping[str, str] = os.environ, wait_s: float = _WAIT_S) -> None:
    """Check that something listens where the environment says that servers are, before libraries try for over a minute.

    For a command's start only: a server that goes away later is waited for.

    Raises:
        ServerAwayError: nothing does.
    """
    for whose, name in (("MLflow's", _MLFLOW), ("Prefect's", _PREFECT)):
        address = environ.get(name, "")
        if address.startswith("http") and not _listens(address, wait_s):
            raise ServerAwayError(
                f"{whose} server at {without_passwords(address)} does not answer, so nothing was started: start the server "
                f"(or correct {name}), then give the same command again"
            )


def _listens(address: str, wait_s: float) -> bool:
    parts = urlsplit(address)
    if any(os.environ.get(name) for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        return True  # which may reach what this machine cannot
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    until = time.monotonic() + wait_s
    while True:
        try:
            with closing(socket.create_connection((host, port), timeout=wait_s)):
                return True
        except OSError:
            if time.monotonic() + _PAUSE_S >= until:
                return False
        time.sleep(_PAUSE_S)


def away(error: BaseException | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """What to do about an error that comes from a server that does not answer; None for other errors.

    Only servers that the environment names can be away: others are this process's own.
    """
    while error is not None:
        if isinstance(error, ServerAwayError):
            return str(error)
        if environ.get(_PREFECT) and _is_of_prefect(error):
            return _sentence("Prefect's", _PREFECT, environ[_PREFECT])
        if environ.get(_MLFLOW, "").startswith("http") and _is_of_mlflow(error):
            return _sentence("MLflow's", _MLFLOW, environ[_MLFLOW])
        error = error.__cause__ or error.__context__
    return None


def _sentence(whose: str, name: str, address: str) -> str:
    return (
        f"{whose} server at {without_passwords(address)} does not answer, so the run could not go on; finished work is kept: "
        f"start the server (or correct {name}), then give the same command again"
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
