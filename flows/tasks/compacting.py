"""Merges the small files of cost samples that trainings leave, so that queries stay fast in a lake that nobody tends."""

from prefect import get_run_logger

from storage.lake.compaction import compact_where_many
from storage.store import Store


def merge_small_files(store: Store) -> None:
    """Merge them where a folder of the lake has many, as `dreamshard compact` does; a failure is a warning in the run's log.

    Call it when measurements are in the lake: whatever goes wrong here leaves the files as they were, and the next training
    tries it again.
    """
    logger = get_run_logger()
    try:
        folders = compact_where_many(store.lake)
    except (OSError, ValueError) as error:
        logger.warning("small files of cost samples were not merged, so queries stay as slow as they are: %s", error)
        return
    for done in folders:
        logger.info("merged files of %s: %d became %d", done.folder, done.files_before, done.files_after)
