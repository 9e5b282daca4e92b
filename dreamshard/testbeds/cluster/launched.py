"""Ranks in the processes of a launcher: rank 0 runs the flow and drives, and every process keeps one rank for it.

The processes find the driver's port, and the key that its callers must know, in a TCPStore at the launcher's address. Whoever
can reach that store can read the key, as with torch.distributed itself; a key of one's own does not go there.
"""

import errno
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import AuthenticationError

from torch.distributed import TCPStore  # type: ignore[attr-defined] # it is exported, but not in `__all__`

from dreamshard.testbeds.cluster.keeper import Keeper, Place
from dreamshard.testbeds.cluster.keeper_pool import KeeperPool
from dreamshard.testbeds.cluster.launcher_variables import LaunchedProcess
from dreamshard.testbeds.cluster.layout import Layout
from dreamshard.testbeds.cluster.messages import DeviceType
from dreamshard.testbeds.cluster.rank_launcher import RankTrouble
from dreamshard.testbeds.cluster.ranks import Ranks
from dreamshard.testbeds.cluster.reception import LOOPBACK, Reception

logger = logging.getLogger(__name__)

KEY = "DREAMSHARD_CLUSTER_KEY"
"""Environment variable: a key of one's own, the same on all hosts."""

EVERYWHERE = "0.0.0.0"
RETRY_S = 0.5


class LaunchedRanks:
    """A `RankSource` of ranks that keepers start; they are started once here, which tells hosts and hardware.

    Raises:
        RankTrouble: a keeper did not join, or a rank did not start.
        ValueError: see `Layout`.
    """

    advice = (
        "the next measurement starts new ranks in the processes of the launcher, and waits a minute for those that were lost "
        "to join again"
    )

    def __init__(self, pool: KeeperPool, reception: Reception) -> None:
        self._pool = pool
        self._reception = reception
        self._ranks: Ranks | None = Ranks(pool, reception)
        self._device_type: DeviceType | None = None  # of the ranks, once it is chosen
        self.layout: Layout = self._ranks.layout

    def running(self, num_devices: int, device_type: DeviceType) -> Ranks:
        """See `RankSource`."""
        if self._device_type not in (None, device_type):
            self.end_ranks()
        if self._ranks is None:
            self._ranks = Ranks(self._pool, self._reception)
            layout = self._ranks.layout
            if (layout.pattern, layout.kinds) != (self.layout.pattern, self.layout.kinds):
                self.end_ranks()
                raise ValueError(
                    "ranks came back on hosts of another number or kind, so samples would no longer be of the same hardware; "
                    "start again, which keeps all samples and takes the hosts as they are"
                )
        self._device_type = device_type
        return self._ranks

    def end_ranks(self) -> None:
        """See `RankSource`."""
        self._device_type = None
        if self._ranks is not None:
            ranks, self._ranks = self._ranks, None
            ranks.end()

    def close(self) -> None:
        """See `RankSource`; the ranks stay for the next testbed."""

    def shut_down(self, *, done: bool) -> None:
        """End all ranks and keepers.

        Args:
            done: whether what they were needed for succeeded.
        """
        self.end_ranks()
        self._pool.close(done=done)
        self._reception.close()


@contextmanager
def drive(process: LaunchedProcess, join_timeout_s: float, key: bytes | None, port: int = 0) -> Iterator[LaunchedRanks]:
    """All ranks of the launcher for the block; this is its rank 0.

    Args:
        join_timeout_s: how long to wait for the processes of all hosts.
        key: that every process knows; None for a new one, which they read from the store.
        port: that this process listens on; 0 for any free one.

    Raises:
        ConnectionError: a process did not join, a rank did not start, or a port is in use.
        ValueError: see `Layout`.
    """
    reception = listen(process.address, port, key)
    store = _store(process, timedelta(seconds=join_timeout_s))
    told = {"port": reception.port} | ({"key": reception.key.hex()} if key is None else {})
    store.set(_entry(process), json.dumps(told))
    own = Place(process.rank, process.local_rank, process.host)
    local = LOOPBACK if reception.address == EVERYWHERE else reception.address
    threading.Thread(
        target=lambda: Keeper(own, local, reception.port, reception.key).run(), name="keeper", daemon=True
    ).start()
    pool = KeeperPool(process.num_ranks, join_timeout_s)
    try:
        ranks = LaunchedRanks(pool, reception)
    except RankTrouble as trouble:
        pool.close(done=False)
        host = f" on host {trouble.host}" if trouble.host else ""
        detail = f": {trouble.detail.splitlines()[-1]}" if trouble.detail else ""
        raise ConnectionError(
            f"the ranks could not start, since rank {trouble.rank}{host} failed: {trouble.what}{detail}"
        ) from None
    done = False
    try:
        yield ranks
        done = True
    finally:
        ranks.shut_down(done=done)


def keep(process: LaunchedProcess, join_timeout_s: float, key: bytes | None) -> bool:
    """Keep this process's rank for the driver until it ends; whether what the rank was needed for succeeded.

    Raises:
        ConnectionError: no driver was found in time, or it has another key.
    """
    deadline = time.monotonic() + join_timeout_s
    place = Place(process.rank, process.local_rank, process.host)
    while True:
        try:
            store = _store(process, timedelta(seconds=max(1.0, deadline - time.monotonic())))
            told = json.loads(store.get(_entry(process)))
            return Keeper(place, process.address, told["port"], key or bytes.fromhex(told["key"])).run()
        except (AuthenticationError, KeyError):
            raise ConnectionError(
                f"rank {process.rank} on host {process.host} does not know the key of the process that runs the flow on "
                f"{process.address}; set DREAMSHARD_CLUSTER_KEY to the same value on all hosts, or on none"
            ) from None
        except (EOFError, OSError, RuntimeError) as error:  # the store's errors are RuntimeErrors
            if time.monotonic() > deadline:
                raise ConnectionError(
                    f"rank {process.rank} on host {process.host} did not find the process that runs the flow at "
                    f"{process.address}:{process.port} within {join_timeout_s:g} s ({error}); start rank 0 there, and check "
                    "that this host can reach it"
                ) from error
            time.sleep(RETRY_S)  # the driver of an earlier attempt may have left its port in the store


def listen(address: str, port: int = 0, key: bytes | None = None) -> Reception:
    """Listen where other hosts look for this one; on loopback only if they look for it there."""
    if address == "localhost" or address.startswith("127."):
        return Reception(address, port, key)
    try:
        resolved = socket.gethostbyname(address)
        if not resolved.startswith("127."):  # many hosts know themselves by a loopback address
            return Reception(resolved, port, key)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        logger.info("%s is not an address of this host (%s), so all of its addresses are listened on", address, error)
    return Reception(EVERYWHERE, port, key)


def _store(process: LaunchedProcess, timeout: timedelta) -> TCPStore:
    """The launcher's store; without one, that of rank 0.

    Raises:
        ConnectionError: the port is in use.
    """
    is_master = process.rank == 0 and not process.has_store
    try:
        return TCPStore(process.address, process.port, is_master=is_master, timeout=timeout, wait_for_workers=False)
    except RuntimeError as error:
        if is_master and "EADDRINUSE" in str(error):
            raise ConnectionError(
                f"port {process.port} of host {process.host} is in use, so the ranks cannot meet there; end the program that "
                "uses it, or set MASTER_PORT to another port on every host"
            ) from None
        raise


def _entry(process: LaunchedProcess) -> str:
    return f"dreamshard/{process.attempt}/driver"


def own_key(text: str | None) -> bytes | None:
    """The key that a person chose, from its variable.

    Raises:
        ValueError: it is too short to keep others out.
    """
    if not text:
        return None
    if len(text) < 16:
        raise ValueError(
            f"DREAMSHARD_CLUSTER_KEY has {len(text)} characters, which others could guess; give it at least 16, for example "
            "from `openssl rand -hex 32`"
        )
    return os.fsencode(text)
