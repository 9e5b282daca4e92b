"""What a place behind fsspec raises when it cannot be reached: each library has errors of its own, besides the system's.

Only libraries that are loaded are asked, since one that is not has raised nothing; none of them need be installed.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence

_Kinds = Mapping[str, Sequence[str]]

_ALL: _Kinds = {
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "google.auth.exceptions": ("GoogleAuthError",),
    "azure.core.exceptions": ("AzureError",),
    "aiohttp": ("ClientError",),
}
_OF_THE_NETWORK: _Kinds = {
    "botocore.exceptions": ("ConnectionError", "HTTPClientError"),
    "google.auth.exceptions": ("TransportError",),
    "azure.core.exceptions": ("ServiceRequestError", "ServiceResponseError"),
    "aiohttp": ("ClientConnectionError", "ClientPayloadError"),
}

_LASTING = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
"""Errors of the system that nobody's waiting mends."""

_TOO_MANY_REQUESTS, _SERVER_ERROR = 429, 500


def failures(*others: type[BaseException]) -> tuple[type[BaseException], ...]:
    """The kinds of error of a place that cannot be reached or does not let one in, and `others`; for an `except`.

    To be called there and not before: the library that raised may only just have been loaded.
    """
    return (*others, OSError, *_loaded(_ALL))


def may_pass(error: object) -> bool:
    """Whether an error is of a disk, a network or a store that may be well again in a moment."""
    if isinstance(error, tuple(_loaded(_OF_THE_NETWORK))):
        return True
    answer = getattr(error, "response", None)  # botocore's `ClientError` has the store's own
    if isinstance(answer, Mapping) and isinstance(error, tuple(_loaded(_ALL))):
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return status == _TOO_MANY_REQUESTS or status >= _SERVER_ERROR
    return isinstance(error, OSError) and not isinstance(error, _LASTING)


def _loaded(kinds: _Kinds) -> Iterator[type[BaseException]]:
    for module, names in kinds.items():
        if module in sys.modules:
            yield from (getattr(sys.modules[module], name) for name in names)
