"""Locks between flows: one measurement per host, one registry writer, one run per training.

Both kinds of lock are free once their holder is killed. A file lock separates processes of one host at once and without a
server. A global concurrency limit of Prefect separates all that share a Prefect server; people see it, and can pause it,
on its Concurrency page. Its lease is renewed while the block runs and ends within 75 s after the holder is killed.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.settings import get_current_settings

from dreamshard.files.digests import json_digest
from dreamshard.files.locks import locked
from storage.store import Store

HOST = "DREAMSHARD_HOST"
"""Names this host among those that measure; containers give the name of their host, not their own."""

REGISTRY = "dreamshard-registry"
REFERENCE = "dreamshard-reference"
LEASE_S = 60.0
"""The shortest lease that Prefect's server grants; it looks for expired leases every 15 s."""


def host_limit() -> str:
    """The name of this host's limit, `dreamshard-measures-HOST`."""
    return f"dreamshard-measures-{os.environ.get(HOST) or socket.gethostname()}"


@contextmanager
def host_lock() -> Iterator[None]:
    """No other flow of the Prefect server measures on this host during the block."""
    with limit_slot(host_limit()):
        yield


@contextmanager
def registry_lock(store: Store) -> Iterator[None]:
    """Nobody else in this home or on this Prefect server registers or promotes during the block."""
    with home_lock(store, "registry", "another run registers or promotes"), limit_slot(REGISTRY):
        yield


@contextmanager
def reference_lock(store: Store, topology: str) -> Iterator[None]:
    """Nobody else in this home or its store draws reference tasks of `topology` during the block; others may register."""
    is_shared = store.settings.store_root != store.settings.home
    between_hosts = limit_slot(REFERENCE) if is_shared else nullcontext()
    why = f"another run draws the reference tasks of {topology}"
    with home_lock(store, f"reference-{json_digest(topology)}", why), between_hosts:
        yield


@contextmanager
def training_lock(store: Store, key: str) -> Iterator[None]:
    """Nobody else in this home or its store continues or evaluates the training `key` during the block.

    Hosts that share a store use one of 64 limits, because limits are never removed from the server: two trainings that
    share a limit wait for each other, which only costs time.
    """
    is_shared = store.settings.store_root != store.settings.home
    between_hosts = limit_slot(f"dreamshard-training-{int(key, 16) % 64:02}") if is_shared else nullcontext()
    with home_lock(store, f"training-{key}", f"another run continues training {key}"), between_hosts:
        yield


@contextmanager
def home_lock(store: Store, name: str, why: str) -> Iterator[None]:
    """No other process holds `name` in this home during the block.

    Args:
        why: logged when the block has to wait.
    """
    folder = store.settings.home / "locks"
    folder.mkdir(exist_ok=True)
    with locked(folder / f"{name}.lock", why):
        yield


@contextmanager
def limit_slot(limit: str) -> Iterator[None]:
    """Hold one slot of a Prefect limit during the block; does nothing if this process has a server of its own.

    The limit is created with one slot on first use; later changes by people are kept.

    Raises:
        ConcurrencySlotAcquisitionError: the server does not grant slots at all.
    """
    if get_current_settings().api.url is None:
        yield
        return
    make_limit(limit)
    # a server that is away for a while must not end a measurement: the file lock still holds
    with concurrency(limit, strict=True, lease_duration=LEASE_S, raise_on_lease_renewal_failure=False):
        yield


def make_limit(name: str) -> None:
    """Create a limit of one slot, unless it exists.

    Raises:
        ConnectionError: the server does not answer.
    """
    try:
        with get_client(sync_client=True) as client:
            try:
                client.read_global_concurrency_limit_by_name(name)
            except ObjectNotFound:
                with suppress(ObjectAlreadyExists):  # another flow was faster
                    client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
    except httpx.TransportError as error:
        raise ConnectionError(
            f"Prefect's server at {get_current_settings().api.url} does not answer ({error}), so other runs cannot be kept "
            "from doing the same at this moment; start it, or unset PREFECT_API_URL if nobody else uses this store"
        ) from error
