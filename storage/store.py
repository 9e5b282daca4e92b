"""The store: the home and the shared folder, opened once per flow or command and passed on."""

from dataclasses import dataclass

from storage.filesystem import AnyPath, check_writable
from storage.lake import Lake
from storage.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Store(Settings):
    """Settings of folders that exist; only `open_store` makes one. Picklable, so that workers receive it as it is."""

    @property
    def lake(self) -> Lake:
        """Parquet datasets."""
        return Lake(self.lake_root, self.home / "cache")

    @property
    def checkpoints(self) -> AnyPath:
        """The folder of training states; see `run_records.checkpoints`."""
        return self.store_root / "checkpoints"

    @property
    def evaluations(self) -> AnyPath:
        """The folder of evaluation reports."""
        return self.store_root / "evaluations"

    @property
    def plans(self) -> AnyPath:
        """The folder of plans that the flow `place` made."""
        return self.store_root / "plans"


def open_store(settings: Settings | None = None, *, reads_only: bool = False) -> Store:
    """Create the folders of the home, and check that home and shared store can be written.

    Args:
        settings: by default from this process's environment.
        reads_only: accept a home that exists and that this user may only read.

    Raises:
        ValueError: the home is a file, or the home or the shared store cannot be created or written.
    """
    store = Store(**vars(settings or Settings.from_environment()))
    home, root = store.home, store.store_root
    if not (reads_only and home.is_dir()):
        check_writable(home, "DREAMSHARD_HOME or --home")
        for folder in ("prefect", "lake", "checkpoints") if root == home else ("prefect",):
            (home / folder).mkdir(exist_ok=True)
    if root != home:
        check_writable(root, "DREAMSHARD_STORE")
    return store
