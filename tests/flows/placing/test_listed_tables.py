"""Tables of a list that a person names."""

from pathlib import Path

import pytest

from flows.placing.listed_tables import read_listed
from storage.store import open_store


@pytest.mark.parametrize(
    ("name", "said"), [("mlperf-dlrm", "did you mean 'mlperf-dlrm-dcnv2'?"), ("x", "criteo-kaggle")]
)
def test_a_name_that_is_no_list_is_refused_with_those_that_are(name, said, tmp_path, monkeypatch):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=f"no bundled list '{name}'") as refused:
        read_listed(open_store(), Path(name), lambda _: None)
    assert said in str(refused.value)
