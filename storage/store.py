"""The store: the home and the shared folder, opened once per flow or command and passed on."""

import tempfile
from dataclasses import dataclass

from dreamshard.training.config import Algorithm
from storage.filesystem import AnyPath, check_writable
from storage.lake import Lake
from storage.settings import Settings


@dataclass(frozen=True)
class Store:
    """Where everything is kept; only `open_store` makes one. Picklable, so that workers receive it as it is.

    Attributes:
        settings: the addresses; MLflow's functions need nothing else.
    """

    settings: Settings

    def of(self, algorithm: Algorithm) -> "Store":
        """The same store with the versions of an algorithm: those that are champions, trained from and registered."""
        return Store(self.settings.of(algorithm))

    @property
    def lake(self) -> Lake:
        """Parquet datasets."""
        return Lake(self.settings.lake_root, self.settings.home / "cache")

    @property
    def checkpoints(self) -> AnyPath:
        """The folder of training states; see `run_records.checkpoints`."""
        return self.settings.store_root / "checkpoints"

    @property
    def evaluations(self) -> AnyPath:
        """The folder of evaluation reports."""
        return self.settings.store_root / "evaluations"

    @property
    def plans(self) -> AnyPath:
        """The folder of plans that the flow `place` made."""
        return self.settings.store_root / "plans"


def open_store(settings: Settings | None = None, *, reads_only: bool = False) -> Store:
    """Create the folders of the home, and check that home and shared store can be written.

    Args:
        settings: by default from this process's environment.
        reads_only: accept a home that exists and that this user may only read.

    Raises:
        ValueError: the home is a file, or the home or the shared store cannot be created or written.
    """
    store = Store(Settings.from_environment() if settings is None else settings)
    home, root = store.settings.home, store.settings.store_root
    try:
        for folder in ("prefect", "lake", "checkpoints") if root == home else ("prefect",):
            (home / folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            pass  # permission bits alone do not show whether a file system accepts files
    except OSError as error:
        if not (reads_only and home.is_dir()):
            raise ValueError(
                f"the home {home} cannot be written ({error.strerror or error}), so nothing could be kept; point "
                "DREAMSHARD_HOME or --home at a folder you may write"
            ) from error
    if root != home:
        check_writable(root, "DREAMSHARD_STORE")
    return store
