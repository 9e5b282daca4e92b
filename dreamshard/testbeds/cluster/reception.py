"""How processes of other hosts reach the testbed: one TCP port, whose every caller must know the key.

Messages are pickled, so nothing is read from a caller that has not proven by HMAC that it knows the key.
"""

import logging
import pickle
import resource
import secrets
import socket
import struct
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
HANDSHAKE_TIMEOUT_S = 10
SPARE_FILES = 512  # besides connections
SILENCE_S = 30
"""Time after which a connection to a host that is gone breaks, as nothing answers any more."""


class Reception:
    """Listens on one port.

    Args:
        address: of this host, that others reach it by; `0.0.0.0` for all.
        port: 0 for any free one.
        key: that every caller must know; None for a new one.

    Raises:
        OSError: the port is in use, or this host does not have the address.
    """

    def __init__(self, address: str = LOOPBACK, port: int = 0, key: bytes | None = None) -> None:
        self.address = address
        self.key = key or secrets.token_bytes(32)
        try:
            self._server = socket.create_server((address, port), backlog=4096)
        except OSError as error:
            raise OSError(
                error.errno,
                f"ranks cannot connect to this process, because port {port} of {address} cannot be opened "
                f"({error.strerror}); end the program that uses it, or choose another port",
            ) from error
        self.port: int = self._server.getsockname()[1]

    def fileno(self) -> int:
        """Readable while somebody waits to be accepted."""
        return self._server.fileno()

    def accept(self) -> tuple[Connection, object] | None:
        """The next caller and its first message; None if it does not know the key or says nothing in time."""
        accepted, address = self._server.accept()
        set_timeout(accepted, HANDSHAKE_TIMEOUT_S)
        notice_silence(accepted)
        connection = Connection(accepted.detach())
        try:
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
            message = pickle.loads(connection.recv_bytes())
        except (AuthenticationError, EOFError, OSError) as error:
            logger.warning("a caller from %s was turned away: %s", address[0], error or type(error).__name__)
            connection.close()
            return None
        with socket.socket(fileno=connection.fileno()) as borrowed:
            set_timeout(borrowed, 0)
            borrowed.detach()
        return connection, message

    def close(self) -> None:
        """Stop listening."""
        self._server.close()


def connect(address: str, port: int, key: bytes, timeout_s: float = HANDSHAKE_TIMEOUT_S) -> Connection:
    """Connect to a `Reception`.

    Raises:
        OSError: nothing listens there.
        AuthenticationError: it has another key.
    """
    connected = socket.create_connection((address, port), timeout_s)
    connected.settimeout(None)
    notice_silence(connected)
    connection = Connection(connected.detach())
    answer_challenge(connection, key)
    deliver_challenge(connection, key)
    return connection


def allow_connections(count: int) -> None:
    """Let this process have so many connections at once; a shell often allows 1024 open files.

    Raises:
        OSError: the system forbids it.
    """
    needed = count + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise OSError(
            f"this process may open {hard} files, too few for {count} connections to ranks; raise the limit "
            f"(`ulimit -n {needed}`, or LimitNOFILE of the service that starts it)"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def send(connection: Connection, message: object) -> None:
    """Send by value; torch's own pickling would share memory between processes."""
    connection.send_bytes(pickle.dumps(message))


def notice_silence(connected: socket.socket) -> None:
    """Break the connection `SILENCE_S` after the other host has died, even if nothing is being sent."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with suppress(AttributeError):  # macOS has not all of them
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S // 3)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_S // 6)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENCE_S)


def set_timeout(connected: socket.socket, seconds: int) -> None:
    """Limit each read and write of the socket, also through a `Connection`; 0 for no limit."""
    limit = struct.pack("ll", seconds, 0)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
