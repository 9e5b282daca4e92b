"""Connections of an HTTP server that are closed when a request's head does not arrive in time, which uvicorn waits for."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""From a connection, or the first byte of a later request on it, to the end of a request's headers."""

_SENTENCE = (
    f"no whole request came within {HEAD_S:g} s, so the connection is closed for others; send it again\n".encode()
)
_ANSWER = (
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_SENTENCE), _SENTENCE)
)


class PromptConnection(H11Protocol):
    """uvicorn's connection with a limit on the time to a request's head."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a head, or no longer."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        self._wait_no_longer()

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_longer()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self._close)

    def _wait_no_longer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        self._timer = None
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.write(_ANSWER)
            self.transport.close()
