"""Limits in front of the scoring server, so that one client cannot hold it for all others.

A body is counted before it is parsed, and requests and tables before anything is placed. What exceeds a limit is answered
with 413 or 422 and a sentence that names the limit, and a body that comes too slowly with 408; what is no JSON at all is left
to the server, which answers 400. No answer shows more than a short part of what was sent. Computing ends when its client is
gone, or with a 503 when it takes too long.
"""

import asyncio
import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flows.servers import scoring_work
from flows.servers.scoring_work import Work
from storage.asgi import Application, Message, Receive, Send

PATH = "/invocations"
PAGES = ("/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json")
MOST_TABLES = 4_096
"""Tables of a request that a version takes, whatever the limits are."""

_TOO_LARGE, _WRONG_TYPE, _UNPROCESSABLE, _NOT_FOUND = 413, 415, 422, 404
_BAD_REQUEST, _TOO_SLOW, _UNAVAILABLE = 400, 408, 503
_BESIDE_SEARCH_S = 20.0  # for what no time limit cuts: waiting for others, and the placements that a search starts from
_LONGEST_MESSAGE = 1000  # characters
_QUOTED = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_END_S = 5.0  # for the server to let go of a request that is stopped


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """The most that is accepted.

    Attributes:
        body_bytes: of a body; 4,096 tables with all statistics have about 2 MB.
        requests: in a body; they are placed one after another.
        tables: of a request; up to `MOST_TABLES`.
        all_tables: over all requests of a body. They are described, and a first placement is made of them, which no limit
            of time cuts: a second or two of computing.
        choices: tables x devices, over all requests of a body; memory and the time for first placements grow with them too.
        values: in a body, counted by the commas, colons and brackets outside its texts; parsing more would hold up other
            clients for seconds.
        whole_bodies: bodies of the largest size whose bytes a process holds at a time; of smaller ones more.
        body_s: for a body to arrive; its connection is closed after that.
        search_s: of searching for all plans of a body; then the best ones found are the answer.
        at_once: bodies that are computed at the same time; others wait for their turn. Threads of one process that all
            compute keep each other from it.
    """

    body_bytes: int = 16 * 2**20
    requests: int = 16
    tables: int = MOST_TABLES
    all_tables: int = MOST_TABLES
    choices: int = 2**17
    values: int = 400_000
    whole_bodies: int = 16
    body_s: float = 30.0
    search_s: float = 10.0
    at_once: int = 2

    @property
    def all_body_bytes(self) -> int:
        """Of all bodies that are arriving, waiting and computed."""
        return self.whole_bodies * self.body_bytes

    @property
    def answer_s(self) -> float:
        """From the end of a body to its answer; then its computing is stopped."""
        return 2 * self.search_s + _BESIDE_SEARCH_S


@dataclass(kw_only=True)
class _Bodies:
    """Bytes of all bodies that a process holds."""

    held_bytes: int = 0


def limited(app: Application, limits: RequestLimits, *, pages: bool = False) -> Application:
    """`app`, an ASGI application, with limits on what is posted to it; without its pages for programmers unless `pages`."""
    turns = asyncio.Semaphore(limits.at_once)
    bodies = _Bodies()

    async def checked(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
        elif scope["path"] in PAGES and not pages:
            await _answer(send, _NOT_FOUND, "there is no such page; start the server with --docs for its API pages")
        elif scope["path"] != PATH:
            await app(scope, receive, send)
        else:
            await _checked_body(in_turn, limits, bodies, scope, receive, send)

    async def in_turn(scope: Message, receive: Receive, send: Send) -> None:
        async with turns:
            await app(scope, receive, send)

    return checked


async def _checked_body(
    app: Application, limits: RequestLimits, bodies: _Bodies, scope: Message, receive: Receive, send: Send
) -> None:
    headers = dict(scope.get("headers", []))
    kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    announced = headers.get(b"content-length", b"0")
    if announced.isdigit() and int(announced) > limits.body_bytes:
        await _answer(send, _TOO_LARGE, _too_large(limits))
        return
    if scope["method"] == "POST" and kind != "application/json":
        await _answer(send, _WRONG_TYPE, "the body is not JSON; send Content-Type: application/json")
        return
    body = bytearray()
    try:
        if refused := await _received(body, limits, bodies, receive):
            await _answer(send, *refused)
        elif problem := exceeded(body, limits):
            await _answer(send, _UNPROCESSABLE, problem)
        else:
            await _answered(app, limits, scope, body, receive, send)
    except _GoneError:
        return
    finally:
        bodies.held_bytes -= len(body)


class _GoneError(Exception):
    """The client left before its body had arrived."""


async def _received(
    body: bytearray, limits: RequestLimits, bodies: _Bodies, receive: Receive
) -> tuple[int, str] | None:
    """Append a body as it arrives; the status and the sentence with which it is refused, or None."""
    more = True
    try:
        async with asyncio.timeout(limits.body_s):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _GoneError
                part = message.get("body", b"")
                body += part
                bodies.held_bytes += len(part)
                if len(body) > limits.body_bytes:
                    return _TOO_LARGE, _too_large(limits)
                if bodies.held_bytes > limits.all_body_bytes:
                    return _UNAVAILABLE, (
                        f"the server holds {limits.all_body_bytes / 2**20:g} MiB of bodies already, as much as it may, so "
                        "this one was not read; send it again when the server is less busy"
                    )
                more = bool(message.get("more_body", False))
    except TimeoutError:
        return (
            _TOO_SLOW,
            f"the body did not arrive within {limits.body_s:g} s, so others get its connection; send it again",
        )
    return None


def _too_large(limits: RequestLimits) -> str:
    return (
        f"the body has more than {limits.body_bytes / 2**20:g} MiB, so it was not read; send fewer tables at once, or start "
        "the server with a larger --max-body-mb"
    )


async def _answered(
    app: Application, limits: RequestLimits, scope: Message, body: bytearray, receive: Receive, send: Send
) -> None:
    """Send the answer of `app`, unless the client leaves first or time runs out: either stops the work."""
    unread = [body]
    left = asyncio.create_task(_until_gone(receive))
    work = Work()
    scoring_work.CURRENT.set(work)
    answer: list[Message] = []

    async def replayed() -> Message:
        if unread:
            return {"type": "http.request", "body": bytes(unread.pop()), "more_body": False}
        await asyncio.wait({left})
        return {"type": "http.disconnect"}

    async def kept(message: Message) -> None:
        answer.append(message)

    answering = asyncio.ensure_future(app(scope, replayed, kept))
    try:
        await asyncio.wait({answering, left}, timeout=limits.answer_s, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            answering.result()
            for message in _without_request(answer, work.problem):
                await send(message)
        elif not left.done():
            await _answer(
                send,
                _UNAVAILABLE,
                f"the request was stopped after {limits.answer_s:g} s of computing and of waiting for others; send fewer "
                "tables or devices at once, try again when the server is less busy, or start it with a larger --max-seconds",
            )
    finally:
        if not answering.done():
            work.stop()
            answering.cancel()
        left.cancel()
        await asyncio.wait({answering, left}, timeout=_END_S)


def _without_request(answer: list[Message], problem: str | None) -> list[Message]:
    """An answer that shows at most a short part of its request, where MLflow's errors show all of it.

    Args:
        answer: its messages.
        problem: why the request was refused, where that is known.
    """
    if not answer or answer[0]["status"] < _BAD_REQUEST:
        return answer
    try:
        content: Any = json.loads(b"".join(message.get("body", b"") for message in answer))
    except ValueError:
        content = None
    said = content if isinstance(content, Mapping) else {}
    message = problem or str(said.get("message", "the request could not be answered"))
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[: _LONGEST_MESSAGE // 2]} ... {message[-_LONGEST_MESSAGE // 4 :]}"
    body = json.dumps({"error_code": said.get("error_code", "INTERNAL_ERROR"), "message": message}).encode()
    return [
        {**answer[0], "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]},
        {"type": "http.response.body", "body": body},
    ]


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _most_values(body: bytes | bytearray) -> int:
    return 1 + sum(map(body.count, (b",", b":", b"[", b"{")))


def exceeded(body: bytes | bytearray, limits: RequestLimits) -> str | None:
    """Which limit a body exceeds, in one sentence; None if it exceeds none, or is no JSON."""
    if _most_values(body) > limits.values and _most_values(_QUOTED.sub(b"", body)) > limits.values:
        return f"the body has more than {limits.values:,} values, which would hold up others; send fewer tables at once"
    try:
        content: Any = json.loads(body)
    except RecursionError:
        return "the body nests values too deeply to be read; send a list of requests"
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None
    except ValueError:  # which Python raises for an integer of more than 4,300 digits
        return "the body has a number with too many digits to be read; send numbers within 64 bits"
    if not isinstance(content, Mapping):
        return None
    if others := sorted(set(map(str, content)) - {"inputs", "params"}):
        return f'the body has {reprlib.repr(others[0])}, which is not read here; send {{"inputs": [REQUEST, ...]}}'
    requests = content.get("inputs")
    if not isinstance(requests, list):
        return None
    if len(requests) > limits.requests:
        return (
            f"the body has {len(requests)} requests, more than {limits.requests}, which would hold up other clients; send "
            "them in several bodies, or start the server with a larger --max-requests"
        )
    all_tables = choices = 0
    for number, request in enumerate(requests):
        asked = request if isinstance(request, Mapping) else {}
        tables, devices = asked.get("tables"), asked.get("num_devices")
        if not isinstance(tables, list):
            continue
        if len(tables) > limits.tables:
            larger = ", or start the server with a larger --max-tables" if limits.tables < MOST_TABLES else ""
            return (
                f"request {number} has {len(tables):,} tables, more than {limits.tables:,}, which would hold up other "
                f"clients; place them with `dreamshard place`{larger}"
            )
        all_tables += len(tables)
        choices += len(tables) * devices if isinstance(devices, int) else 0
    if all_tables > limits.all_tables:
        return (
            f"the body has {all_tables:,} tables in all its requests, more than {limits.all_tables:,}, which would hold up "
            "other clients; send its requests one by one"
        )
    if choices > limits.choices:
        return (
            f"the body asks for more than {limits.choices:,} choices (tables x devices), which would "
            "hold up other clients; send its requests one by one, or place them with `dreamshard place`"
        )
    return None


async def _answer(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]  # the rest of a body is not read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
