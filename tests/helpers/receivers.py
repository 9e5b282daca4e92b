"""Servers that receive what is sent to people."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler


class Webhook(BaseHTTPRequestHandler):
    """Keeps what is posted to it."""

    def do_POST(self) -> None:
        """A message."""
        self.server.messages.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(200)
        self.end_headers()


@contextmanager
def receiving(server: socketserver.BaseServer) -> Iterator[tuple[int, list[str]]]:
    """The port of a server, and the messages that it gets while the block runs."""
    server.messages = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1], server.messages
    finally:
        server.shutdown()
        server.server_close()
