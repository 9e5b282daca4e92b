"""The login of a team's servers: `DREAMSHARD_LOGIN=NAME:PASSWORD`, one for Prefect and MLflow, for servers and clients.

`DREAMSHARD_LOGIN=off` lets everyone in. Without the variable, servers that only this machine reaches ask for none, and
others for the one in the home.

`client_environment` turns it into what Prefect's and MLflow's own clients read. `guarded` asks for it in front of an
application that has no login of its own.
"""

import base64
import hmac
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from storage.asgi import Application, Message, Receive, Send

LOGIN = "DREAMSHARD_LOGIN"
OFF = "off"
FILE = "login"
_UNAUTHORIZED = 401


def checked(login: str) -> str:
    """`login` unchanged.

    Raises:
        ValueError: it is not NAME:PASSWORD; the message does not repeat it, since it may be a password.
    """
    name, _, password = login.partition(":")
    if not name or not password or not login.isascii() or any(sign.isspace() for sign in login):
        raise ValueError(
            f"{LOGIN} is neither `off` nor NAME:PASSWORD in letters, digits and signs without spaces, so nobody could log in "
            "with it; set it to e.g. team:$(openssl rand -hex 16)"
        )
    return login


def kept(home: Path) -> str | None:
    """The login that this home's servers were given, or None."""
    file = home / FILE
    return checked(file.read_text().strip()) if file.is_file() else None


def make(home: Path) -> str:
    """A new login, kept in the home where only its owner can read it."""
    login = f"dreamshard:{secrets.token_urlsafe(18)}"
    descriptor = os.open(home / FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(login + "\n")
    return login


def of_server(environ: Mapping[str, str]) -> str | None:
    """The login that a server of its own process asks for; None if it lets everyone in.

    Raises:
        SystemExit: `DREAMSHARD_LOGIN` is neither `off` nor NAME:PASSWORD; the message is for the server's log.
    """
    given = environ.get(LOGIN)
    try:
        return None if not given or given == OFF else checked(given)
    except ValueError as error:
        raise SystemExit(str(error)) from error


def client_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables with which Prefect's and MLflow's clients log in; none without `DREAMSHARD_LOGIN`.

    In a container of a work pool the login is the one that Prefect passes on to its runs, `PREFECT_API_AUTH_STRING`.

    Raises:
        ValueError: it is not NAME:PASSWORD.
    """
    given = environ.get(LOGIN) or environ.get("PREFECT_API_AUTH_STRING") or OFF
    if given == OFF:
        return {}
    login = checked(given)
    name, _, password = login.partition(":")
    return {"PREFECT_API_AUTH_STRING": login, "MLFLOW_TRACKING_USERNAME": name, "MLFLOW_TRACKING_PASSWORD": password}


def refusal(error: BaseException | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """What to do about an error that comes from a server's refusal of our login; None for other errors."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status == _UNAUTHORIZED or getattr(error, "error_code", None) == "UNAUTHENTICATED":
            given = environ.get(LOGIN, "").partition(":")[0]
            tried = f"the login of {given!r}" if given else f"requests without a login, and {LOGIN} is not set"
            return (
                f"the server refuses {tried}, so nothing was done; set {LOGIN}=NAME:PASSWORD to the server's own, which is "
                f"in the file `{FILE}` of the home it runs for, or in its .env"
            )
        error = error.__cause__ or error.__context__
    return None


def guarded(app: Application, login: str, free: Sequence[str]) -> Application:
    """`app` behind the browser's own login window (HTTP Basic): requests without `login` are answered with 401.

    Args:
        app: an ASGI application.
        login: NAME:PASSWORD.
        free: paths that answer everyone.
    """
    wanted = b"Basic " + base64.b64encode(checked(login).encode())

    async def asked(scope: Message, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", [])).get(b"authorization", b"")
        if scope["type"] == "lifespan" or scope["path"] in free or hmac.compare_digest(given, wanted):
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"www-authenticate", b'Basic realm="dreamshard"'), (b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": f"log in: set {LOGIN} to this server's".encode()})

    return asked
