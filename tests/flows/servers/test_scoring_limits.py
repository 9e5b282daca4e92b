"""What is posted to the scoring server is counted before it is parsed or placed."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from flows.servers import prompt_connections
from flows.servers.scoring_limits import RequestLimits, exceeded, limited

LIMITS = RequestLimits(body_bytes=8000, requests=2, tables=3, choices=20, values=500)
TABLE = {"name": "t", "rows": 10, "dim": 4, "pooling_factor": 1.0}


async def echo(scope, receive, send):
    """Answers with the body that reaches it."""
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message.get("body", b"")})


def posted(content, *, headers=None, path="/invocations", method="POST", pages=False, limits=LIMITS) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=limited(echo, limits, pages=pages))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            kind = {"Content-Type": "application/json", **(headers or {})}
            return await client.request(method, path, content=content, headers=kind)

    return asyncio.run(ask())


def body(*num_tables: int) -> bytes:
    return json.dumps({"inputs": [{"num_devices": 2, "tables": [TABLE] * count} for count in num_tables]}).encode()


def test_what_is_within_the_limits_reaches_the_server_unchanged():
    answer = posted(body(3, 1))
    assert answer.status_code == 200
    assert answer.content == body(3, 1)


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b" " * 8001, 413, "more than 0.00762939 MiB"),
        (body(1, 1, 1), 422, "3 requests, more than 2"),
        (body(1, 4), 422, "request 1 has 4 tables, more than 3"),
        (
            b'{"inputs": [{"num_devices": 7, "tables": [{}, {}, {}]}]}',
            422,
            "more than 20 choices (tables x devices)",
        ),
        (b'{"inputs": [' + b"[]," * 500 + b"[]]}", 422, "more than 500 values"),
        (
            b'{"inputs": [' + b'{"":' * 300 + b"1" + b"}" * 300 + b"," + b"[]," * 200 + b"[]]}",
            422,
            "more than 500 values",
        ),
        (b'{"inputs": [{"num_devices": ' + b"9" * 4000 + b', "tables": [{}]}]}', 422, "more than 20 choices"),
        (b'{"inputs": [{"num_devices": ' + b"9" * 6000 + b"}]}", 422, "too many digits"),
        (b'{"dataframe_split": {}}', 422, "'dataframe_split', which is not read here"),
    ],
)
def test_what_exceeds_a_limit_is_answered_with_the_limit(content, status, said):
    answer = posted(content)
    assert answer.status_code == status
    assert said in answer.json()["error"]


def test_a_body_that_nests_too_deeply_is_answered_with_a_sentence():
    answer = posted(b"[" * 7900, limits=replace(LIMITS, values=10_000))
    assert "nests values too deeply" in answer.json()["error"]


def test_names_may_hold_any_number_of_brackets():
    named = json.dumps({"inputs": [{"num_devices": 2, "tables": [{"name": ",:[{" * 500 + '"'}]}]}).encode()
    assert posted(named).status_code == 200


def test_a_body_of_unknown_length_is_counted_while_it_comes():
    received = []

    async def chunks():
        for number in range(100):
            received.append(number)
            yield b" " * 2000

    answer = posted(chunks())
    assert answer.status_code == 413
    assert len(received) < 10, "the rest is not read"


def test_a_body_that_does_not_end_is_answered_with_a_sentence():
    async def chunks():
        yield b"{"
        await asyncio.Event().wait()

    answer = posted(chunks(), limits=replace(LIMITS, body_s=0.1))
    assert answer.status_code == 408
    assert "did not arrive within 0.1 s" in answer.json()["error"]


@pytest.mark.parametrize(
    ("before", "sent"), [(b"", b""), (b"", b"POST /invoc"), (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"POST /invoc")]
)
def test_connections_without_a_whole_head_are_closed(before, sent, monkeypatch):
    monkeypatch.setattr(prompt_connections, "HEAD_S", 1.0)  # a crowded machine takes long to send a head

    async def received() -> bytes:
        config = uvicorn.Config(limited(echo, LIMITS), log_level="error", lifespan="off")
        state = ServerState()

        def connection() -> prompt_connections.PromptConnection:
            return prompt_connections.PromptConnection(config, state, {})

        server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            if before:
                writer.write(before)
                assert b"200 OK" in await reader.readuntil(b"0\r\n\r\n")
            writer.write(sent)
            content = await asyncio.wait_for(reader.read(), 30)
            writer.close()
        return content

    assert asyncio.run(received()).startswith(b"HTTP/1.1 408")


async def large(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"a" * 2**25})


@asynccontextmanager
async def serving(app):
    """Yields the address of a server of `app`, and the connections that it lost."""
    lost = asyncio.Queue()

    class Watched(prompt_connections.PromptConnection):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.put_nowait(self.client)

    config, state = uvicorn.Config(app, log_level="error", lifespan="off"), ServerState()
    server = await asyncio.get_running_loop().create_server(lambda: Watched(config, state, {}), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname(), lost


async def asking(address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that reads the first ten bytes of its answer only."""
    reader, writer = await asyncio.open_connection(*address, limit=1024)
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    await reader.readexactly(10)
    return reader, writer


def test_a_client_that_does_not_read_its_answer_is_let_go(monkeypatch):
    monkeypatch.setattr(prompt_connections, "ANSWER_S", 0.5)

    async def ask() -> None:
        async with serving(large) as (address, lost):
            _, writer = await asking(address)
            await asyncio.wait_for(lost.get(), 30)  # nothing more is read
            writer.transport.abort()

    asyncio.run(ask())


def test_the_answer_that_is_unread_longest_is_dropped_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(prompt_connections, "UNREAD_BYTES", 3 * 2**24)  # one answer and a half

    async def ask() -> None:
        async with serving(large) as (address, lost):
            _, first = await asking(address)
            reader, second = await asking(address)
            assert await asyncio.wait_for(lost.get(), 30) == first.get_extra_info("sockname")
            answer = bytearray()
            while not answer.endswith(b"\r\n0\r\n\r\n"):
                answer += await asyncio.wait_for(reader.read(2**16), 30)
            assert len(answer) > 2**25, "the other is whole"
            for writer in (first, second):
                writer.transport.abort()

    asyncio.run(ask())


def test_a_body_that_is_no_json_is_left_to_the_server_and_other_types_are_refused():
    assert posted(b"{").content == b"{"
    assert posted(b"a,b", headers={"Content-Type": "text/csv"}).status_code == 415


def test_no_more_bodies_are_computed_at_once_than_the_limit_and_all_are_answered():
    computing = [0]
    most = []

    async def slow(scope, receive, send):
        computing[0] += 1
        most.append(computing[0])
        await asyncio.sleep(0.01)
        computing[0] -= 1
        await echo(scope, receive, send)

    async def ask() -> list[int]:
        transport = httpx.ASGITransport(app=limited(slow, replace(LIMITS, at_once=3)))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            kind = {"Content-Type": "application/json"}
            asked = [client.post("/invocations", content=body(1), headers=kind) for _ in range(20)]
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == [200] * 20
    assert max(most) == 3


def test_a_body_is_refused_while_others_fill_the_memory_for_bodies():
    limits = replace(LIMITS, body_bytes=1500, whole_bodies=1, at_once=1)
    arrived, goes_on = asyncio.Event(), asyncio.Event()

    async def half():
        yield b"{" + b" " * 1000
        arrived.set()
        await goes_on.wait()
        yield b"}"

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=limited(echo, limits))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            kind = {"Content-Type": "application/json"}
            first = asyncio.create_task(client.post("/invocations", content=half(), headers=kind))
            await arrived.wait()
            second = await client.post("/invocations", content=b" " * 1000, headers=kind)
            goes_on.set()
            third = await client.post("/invocations", content=b" " * 1000, headers=kind) if await first else second
            return [await first, second, third]

    first, second, third = asyncio.run(ask())
    assert [first.status_code, second.status_code, third.status_code] == [200, 503, 200]
    assert "MiB of bodies already" in second.json()["error"]


def test_pages_for_programmers_are_there_only_if_asked_for():
    assert posted(b"", path="/docs", method="GET").status_code == 404
    assert posted(b"", path="/openapi.json", method="GET").status_code == 404
    assert posted(b"", path="/docs", method="GET", pages=True).status_code == 200
    assert posted(b"", path="/health", method="GET").status_code == 200


def body_of(tables: int, devices: int, requests: int = 1) -> bytes:
    request = {"num_devices": devices, "memory_gb": 1, "tables": [{}] * tables}
    return json.dumps({"inputs": [request] * requests}).encode()


@pytest.mark.parametrize("asked", [(800, 128), (4096, 32), (32, 4096), (256, 32, 16)])
def test_what_is_started_in_seconds_is_taken(asked):
    assert exceeded(body_of(*asked), RequestLimits()) is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((244, 4096), "asks for more than 131,072 choices (tables x devices)"),
        ((4096, 33), "asks for more than 131,072 choices (tables x devices)"),
        ((257, 2, 16), "has 4,112 tables in all its requests, more than 4,096"),
    ],
)
def test_what_would_compute_for_longer_before_any_search_is_refused(asked, said):
    assert said in str(exceeded(body_of(*asked), RequestLimits()))
