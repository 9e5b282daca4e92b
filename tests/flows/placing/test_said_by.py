"""What a library says reaches those who run a command."""

import logging

from flows.placing.said_by import said_by

LOGGER = logging.getLogger("dreamshard.search.budget")


def test_what_is_said_inside_is_noted_once_and_nothing_outside(caplog):
    notes = []
    with said_by("dreamshard.search", notes.append):
        LOGGER.info("the search is over after %d steps", 7)
        LOGGER.debug("a detail")
        logging.getLogger("dreamshard.files").warning("of another package")
    LOGGER.info("too late")
    assert notes == ["the search is over after 7 steps"]
    assert "the search is over" not in caplog.text  # no other handler says it a second time
    assert "of another package" in caplog.text


def test_loggers_are_as_before_also_after_an_error():
    logger = logging.getLogger("dreamshard.search")
    before = logger.level, logger.propagate, list(logger.handlers)
    try:
        with said_by("dreamshard.search", print):
            raise ValueError("no placement")
    except ValueError:
        pass
    assert (logger.level, logger.propagate, list(logger.handlers)) == before
