"""Errors of stores that cannot be reached: besides the system's own, each library behind fsspec has its kinds.

Only libraries that are already loaded are checked; none needs to be installed.
"""

import sys
from collections.abc import Iterator, Mapping

_ALL = {
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "google.auth.exceptions": ("GoogleAuthError",),
    "azure.core.exceptions": ("AzureError",),
    "aiohttp": ("ClientError",),
}
_NETWORK = {
    "botocore.exceptions": ("ConnectionError", "HTTPClientError"),
    "google.auth.exceptions": ("TransportError",),
    "azure.core.exceptions": ("ServiceRequestError", "ServiceResponseError"),
    "aiohttp": ("ClientConnectionError", "ClientPayloadError"),
}
_PERMANENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)

_TOO_MANY_REQUESTS, _SERVER_ERROR = 429, 500


def failures(*others: type[BaseException]) -> tuple[type[BaseException], ...]:
    """Errors of a store that is unreachable or denies access, and `others`, for an `except`.

    Call it in the `except` clause itself: the library that raised may only just have been loaded.
    """
    return (*others, OSError, *_loaded(_ALL))


def is_of_store(error: object) -> bool:
    """Whether a library behind fsspec raised an error of the store itself, rather than of a file's content."""
    return isinstance(error, tuple(_loaded(_ALL)))


def may_pass(error: object) -> bool:
    """Whether a disk, a network or a store raised an error that a retry may avoid."""
    if isinstance(error, tuple(_loaded(_NETWORK))):
        return True
    response = getattr(error, "response", None)  # of botocore's `ClientError`
    if isinstance(response, Mapping) and isinstance(error, tuple(_loaded(_ALL))):
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return status == _TOO_MANY_REQUESTS or status >= _SERVER_ERROR
    return isinstance(error, OSError) and not isinstance(error, _PERMANENT)


def _loaded(kinds: Mapping[str, tuple[str, ...]]) -> Iterator[type[BaseException]]:
    for module, names in kinds.items():
        if module in sys.modules:
            yield from (getattr(sys.modules[module], name) for name in names)
