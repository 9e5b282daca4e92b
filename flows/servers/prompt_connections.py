"""Connections of an HTTP server that are closed when a head does not arrive or an answer is not read, as uvicorn does not."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""From a connection, or the first byte of a later request on it, to the end of a request's headers."""

ANSWER_S = 60.0
"""From the end of an answer until its client has read it, but for what the kernel keeps."""

UNREAD_BYTES = 2**28
"""Of answers that clients have not read; beyond that, those whose clients have had the longest time are dropped."""

_SENTENCE = (
    f"no whole request came within {HEAD_S:g} s, so the connection is closed for others; send it again\n".encode()
)
_ANSWER = (
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_SENTENCE), _SENTENCE)
)


class PromptConnection(H11Protocol):
    """uvicorn's connection with limits on the time to a request's head, and on how long and how much is kept unread."""

    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

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
        self._count_as_read()

    def on_response_complete(self) -> None:
        """Wait for the client to read what is left of the answer, or no longer."""
        if self._unread is None and self.transport.get_write_buffer_size():
            self._unread = self.loop.call_later(ANSWER_S, self._drop_unread)
            self._make_room()
        super().on_response_complete()

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_longer()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self._close)

    def _wait_no_longer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _make_room(self) -> None:
        unread = {
            each: each._unread.when()
            for each in self.connections
            if isinstance(each, PromptConnection) and each._unread
        }
        sizes = {each: each.transport.get_write_buffer_size() for each in unread}
        for each in sorted(unread, key=unread.__getitem__):
            if sum(sizes.values()) <= UNREAD_BYTES:
                return
            del sizes[each]
            each._drop_unread()

    def _drop_unread(self) -> None:
        self._count_as_read()
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def _count_as_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _close(self) -> None:
        self._timer = None
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.write(_ANSWER)
            self.transport.close()
