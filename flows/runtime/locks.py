"""Who waits for whom among flows: measurements of a host, changes of the registry, runs of the same training.

Two kinds of lock, both free when their holder is killed. A file lock keeps processes of one host apart at once and without
a server. A global concurrency limit of Prefect does so for all who share a Prefect server, and is seen, and can be
paused, on its Concurrency page; its lease is renewed while the block runs and ends within 75 s of a killed holder.
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

from dreamshard.files.locks import locked
from storage.settings import Settings

HOST = "DREAMSHARD_HOST"
"""How the host is called among those that measure; containers of one host say its name, not their own."""

REGISTRY = "dreamshard-registry"
LEASE_S = 60.0
"""The shortest that Prefect's server grants; it looks for leases that have run out every 15 s."""


def host_limit() -> str:
    """The name of the limit of this host, `dreamshard-measures-HOST`."""
    return f"dreamshard-measures-{os.environ.get(HOST) or socket.gethostname()}"


@contextmanager
def of_host() -> Iterator[None]:
    """Within this block no other flow of the Prefect server measures on this host."""
    with shared(host_limit()):
        yield


@contextmanager
def of_registry() -> Iterator[None]:
    """Within this block nobody else registers or promotes: neither in this home nor on this Prefect server."""
    with in_home("registry", "another run registers or promotes"), shared(REGISTRY):
        yield


@contextmanager
def of_training(key: str) -> Iterator[None]:
    """Within this block nobody else goes on with the training `key` or evaluates it, in this home or in its store.

    Across hosts that share a store the limit is one of 64, since limits stay on the server for good: two trainings that
    meet in one wait for each other, which costs time alone.
    """
    settings = Settings.load()
    everywhere = (
        shared(f"dreamshard-training-{int(key, 16) % 64:02}") if settings.store_root != settings.home else nullcontext()
    )
    with in_home(f"training-{key}", f"another run goes on with training {key}"), everywhere:
        yield


@contextmanager
def in_home(name: str, why: str) -> Iterator[None]:
    """Within this block no other process holds `name` in this home, `why` being logged where one does."""
    folder = Settings.load().home / "locks"
    folder.mkdir(exist_ok=True)
    with locked(folder / f"{name}.lock", why):
        yield


@contextmanager
def shared(limit: str) -> Iterator[None]:
    """Within this block one slot of a Prefect limit is held; nothing where this process has a server of its own.

    The limit is made on first use, with one slot; what people have set since is kept.

    Raises:
        ConcurrencySlotAcquisitionError: the server does not grant slots at all.
    """
    if get_current_settings().api.url is None:
        yield
        return
    make_limit(limit)
    # a server that is away for a while must not end a measurement: the file lock holds all the same
    with concurrency(limit, strict=True, lease_duration=LEASE_S, raise_on_lease_renewal_failure=False):
        yield


def make_limit(name: str) -> None:
    """Make a limit of one slot, unless it is there.

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
            f"Prefect's server at {get_current_settings().api.url} does not answer ({error}), so nobody can be kept from "
            "doing the same at this moment; start it, or unset PREFECT_API_URL where nobody else works with this store"
        ) from error
