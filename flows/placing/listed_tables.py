"""Tables from a file, to be placed."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dreamshard.tables import Tables
    from storage.store import Store


def read_listed(store: "Store", path: Path, note: Callable[[str], None]) -> "Tables":
    """The tables of a file, or of a shipped list by its name; `note` gets a sentence on what was filled in."""
    from dreamshard.workloads import bundled_lists, read_tables

    path = bundled_lists().get(str(path), path)
    versions = store.lake.dataset_versions()
    listed = read_tables(path, store.lake.read_dataset(versions[-1]) if versions else None)
    if listed.defaulted:
        if versions:
            ingested = f"data set {versions[-1]} ({store.lake.dataset_source(versions[-1])})"
            source = f"taken from the mean of the tables ingested last, {ingested}"
        else:
            source = "no tables have been ingested into this home, so lookups are filled in by a Zipf law"
            source += " and one per sample" if "pooling_factor" in listed.defaulted else ""
        note(f"{path} lacks {', '.join(listed.defaulted)}: {source}")
    return listed.tables
