"""What a request computes ends when nobody waits for it any more, and nothing else does."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from flows.servers.scoring_limits import RequestLimits, limited
from flows.servers.scoring_work import CURRENT, StoppableModel, StoppedError, Work

LONGEST_S = 30  # of waiting for a thread to end


class Endless:
    """A model that computes until it is stopped."""

    metadata = SimpleNamespace()

    def __init__(self):
        self.began, self.ended = threading.Event(), threading.Event()

    def predict(self, data, params=None):
        self.began.set()
        try:
            deadline = time.monotonic() + LONGEST_S
            while time.monotonic() < deadline:
                pass
        except StoppedError:
            self.ended.set()
            raise


def ask(model, limits, receive) -> list[dict]:
    """What a server of this model sends."""
    sent = []

    async def app(scope, receive, send):
        await asyncio.to_thread(StoppableModel(model).predict, await receive())

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "path": "/invocations",
        "method": "POST",
        "headers": [(b"content-type", b"application/json")],
    }
    asyncio.run(limited(app, limits)(scope, receive, send))
    return sent


def test_a_client_that_leaves_ends_what_it_asked_for():
    model, messages = Endless(), [{"type": "http.request", "body": b'{"inputs": []}'}]

    async def receive():
        if messages:
            return messages.pop()
        await asyncio.to_thread(model.began.wait)
        return {"type": "http.disconnect"}

    assert ask(model, RequestLimits(), receive) == []
    assert model.ended.wait(LONGEST_S)


def test_what_takes_too_long_is_ended_and_answered_with_a_sentence(monkeypatch):
    model, messages = Endless(), [{"type": "http.request", "body": b'{"inputs": []}'}]
    monkeypatch.setattr(RequestLimits, "answer_s", 0.2)

    async def receive():
        return messages.pop() if messages else await asyncio.Event().wait()

    start, content = ask(model, RequestLimits(), receive)
    assert start["status"] == 503
    assert b"was stopped after 0.2 s" in content["body"]
    assert model.ended.wait(LONGEST_S)


def test_a_stop_ends_no_other_work_of_the_thread():
    work = Work()
    CURRENT.set(work)
    model = StoppableModel(SimpleNamespace(metadata=None, predict=lambda data, params: data))
    assert model.predict([1]) == [1]
    work.stop()
    CURRENT.set(Work())
    assert model.predict([2]) == [2]
    CURRENT.set(work)
    with pytest.raises(StoppedError):
        model.predict([3])
