"""Whether there can be a registry at all, without importing MLflow, which takes seconds."""

from pathlib import Path

from storage.settings import Settings

LOCAL = "sqlite:///"
"""How the address of a database on this host begins."""


def may_have_versions(settings: Settings) -> bool:
    """False only where the registry is a database on this host that does not exist yet."""
    uri = settings.tracking_uri
    return not uri.startswith(LOCAL) or Path(uri.removeprefix(LOCAL)).exists()
