"""What a run ends with whose disk is full."""

import pytest
from mlflow.exceptions import MlflowException

from dreamshard.files.full_disk import FullDiskError
from storage.mlflow_store import run_endings

FULL = MlflowException(
    "(sqlite3.OperationalError) database or disk is full [SQL: INSERT INTO metrics] [parameters: (1, 2)]"
)


class FullDatabase:
    def set_tag(self, *_given):
        raise FULL


@pytest.mark.parametrize(("raised", "ends_with"), [(FULL, FullDiskError), (ValueError("7 devices"), ValueError)])
def test_a_run_ends_with_its_own_error_or_with_one_sentence_on_the_full_disk(raised, ends_with):
    with pytest.raises(ends_with) as caught, run_endings.ending(FullDatabase, "run"):
        raise raised
    assert "SQL" not in str(caught.value)
