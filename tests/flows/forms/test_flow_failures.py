"""What the log of a flow run says of errors."""

import logging
import sys

from flows.forms.flow_failures import SentenceFirst

ADDRESS = "postgresql://ada:s3cret@db/mlflow"


def logged(error: Exception) -> str:
    """What a handler writes of the record of an error."""
    try:
        raise error
    except Exception:  # noqa: BLE001 - the test gives any error
        record = logging.LogRecord("prefect.engine", logging.ERROR, __file__, 1, "%s", (error,), sys.exc_info())
    assert SentenceFirst().filter(record)
    return logging.Formatter().format(record)


def test_neither_a_sentence_nor_a_traceback_has_a_password():
    assert logged(ValueError(f"{ADDRESS} is away")) == "postgresql://ada:...@db/mlflow is away"
    unexpected = logged(KeyError(f"{ADDRESS} is away"))
    assert "Traceback" in unexpected
    assert "s3cret" not in unexpected
