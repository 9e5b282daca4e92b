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


def test_a_model_is_made_once_until_its_source_is_closed(tmp_path: Path):
    pytest.importorskip("torchrec")
    (tmp_path / "sourced_model.py").write_text(MODEL)
    config = WorkloadConfig(source=f"{tmp_path}/sourced_model.py:make_model", batch_size=8, dim=None)
    token = sources.token_of(config)
    assert sources.opened_source(config, token).names == ("user",)
    assert sources.opened_source(config, token).notes
    import sourced_model

    assert sourced_model.calls == 1
    with pytest.raises(ValueError, match="gave other tables in this process"):
        sources.opened_source(config, "another")
    sources.close()
    assert sources.token_of(config) == token
