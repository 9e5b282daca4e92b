from pathlib import Path

import pytest

from dreamshard.workloads import WorkloadConfig
from flows.runtime import sources

MODEL = """
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig

calls = 0

def make_model():
    global calls
    calls += 1
    tables = [EmbeddingBagConfig(name="user", num_embeddings=100, embedding_dim=16, feature_names=["u"])]
    return EmbeddingBagCollection(device=torch.device("meta"), tables=tables)
"""


@pytest.fixture(autouse=True)
def _closed():
    sources.close()
    yield
    sources.close()


def test_paths_become_absolute_and_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("name,rows,dim\n")

    def absolute(source: str, batches: str | None = None) -> tuple[str, str | None]:
        found = sources.with_absolute_paths(WorkloadConfig(source=source, batches=batches))
        return found.source, found.batches

    assert absolute("t.csv") == (f"{tmp_path}/t.csv", None)
    assert absolute("meta-dlrm-2021") == ("meta-dlrm-2021", None)
    assert absolute("m.py:make", "d.py:batches") == (f"{tmp_path}/m.py:make", f"{tmp_path}/d.py:batches")
    assert absolute("package.m:make", "package.d:batches") == ("package.m:make", "package.d:batches")


def test_a_model_is_made_once_until_its_source_is_closed(tmp_path: Path):
    pytest.importorskip("torchrec")
    (tmp_path / "sourced_model.py").write_text(MODEL)
    config = WorkloadConfig(source=f"{tmp_path}/sourced_model.py:make_model", batch_size=8, dim=None)
    token = sources.token_of(config)
    assert sources.opened_source(config, token).names == ("user",)
    assert sources.notes_on(config)
    import sourced_model

    assert sourced_model.calls == 1
    with pytest.raises(ValueError, match="gave other tables in this process"):
        sources.opened_source(config, "another")
    sources.close()
    assert sources.token_of(config) == token
