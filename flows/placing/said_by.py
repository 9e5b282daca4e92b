"""What a library says while it works, for people who run a command."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Notes(logging.Handler):
    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self.note = note

    def emit(self, record: logging.LogRecord) -> None:
        self.note(record.getMessage())


@contextmanager
def said_by(package: str, note: Callable[[str], None]) -> Iterator[None]:
    """Pass what the package's loggers say, from INFO on, to `note` and to no other handler."""
    logger, notes = logging.getLogger(package), _Notes(note)
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(notes)
    try:
        yield
    finally:
        logger.removeHandler(notes)
        logger.level, logger.propagate = before
