"""Locks between flows: one writer of the registry, one run per training; each is free once its holder is killed.

A file lock separates processes of one home, and a concurrency limit of Prefect all that share a server. `deploy` makes the
limit; without it, the file lock alone holds.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from prefect.concurrency.sync import concurrency
from prefect.settings import get_current_settings

from dreamshard.files.locks import locked
from storage.store import Store

REGISTRY = "dreamshard-registry"
LEASE_S = 60.0
"""The shortest lease that Prefect's server grants."""


@contextmanager
def registry_lock(store: Store) -> Iterator[None]:
    """Nobody else in this home or on this Prefect server registers or promotes during the block."""
    has_server = get_current_settings().api.url is not None
    between_hosts = concurrency(REGISTRY, lease_duration=LEASE_S) if has_server else nullcontext()
    with home_lock(store, "registry", "another run registers or promotes"), between_hosts:
        yield


@contextmanager
def training_lock(store: Store, key: str) -> Iterator[None]:
    """Nobody else in this home continues or evaluates the training `key` during the block."""
    with home_lock(store, f"training-{key}", f"another run continues training {key}"):
        yield


@contextmanager
def home_lock(store: Store, name: str, why: str) -> Iterator[None]:
    """No other process holds `name` in this home during the block; `why` is logged when it has to wait."""
    folder = store.settings.home / "locks"
    folder.mkdir(exist_ok=True)
    with locked(folder / f"{name}.lock", why):
        yield
