"""`dreamshard place model.py:make_model`: a plan of the model as it is, which loads in it."""

import json
from pathlib import Path

import pytest

torchrec = pytest.importorskip("torchrec")


from dreamshard.torchrec import load_plan  # noqa: E402
from dreamshard.workloads import call, dataset_version  # noqa: E402
from flows.placing.models import read_model  # noqa: E402
from storage.settings import Settings  # noqa: E402
from storage.store import open_store  # noqa: E402
from tests.flows.commands import dreamshard  # noqa: E402
from tests.helpers.tables import tables_of  # noqa: E402

MODEL = """
import torch
from torch.distributed.optim import _apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
from torchrec.modules.embedding_configs import DataType

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        meta = torch.device("meta")
        user = EmbeddingBagConfig(name="user", num_embeddings=100, embedding_dim=16, feature_names=["u"])
        word = EmbeddingConfig(
            name="word", num_embeddings=1000, embedding_dim=8, feature_names=["w"], data_type=DataType.FP16
        )
        self.sparse = EmbeddingBagCollection(device=meta, tables=[user])
        self.history = EmbeddingCollection(device=meta, tables=[word])
        _apply_optimizer_in_backward(torch.optim.Adam, self.parameters(), {"lr": 0.1})

def make_model():
    return Model()

class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        meta = torch.device("meta")
        odd = EmbeddingBagConfig(name="odd", num_embeddings=1000, embedding_dim=10, feature_names=["o"])
        long = EmbeddingConfig(name="long", num_embeddings=20_000_000, embedding_dim=120, feature_names=["l"])
        self.sparse = EmbeddingBagCollection(device=meta, tables=[odd])
        self.history = EmbeddingCollection(device=meta, tables=[long])

def make_odd():
    return Odd()

def broken():
    raise RuntimeError("no such file: weights")
"""
CONFIG = {"name": "user", "num_embeddings": 100, "embedding_dim": 6, "feature_names": ["u"], "data_type": "FP16"}


@pytest.fixture
def place(tmp_path):
    """Call `place` on a source; the arguments are further options."""
    (tmp_path / "placed_model.py").write_text(MODEL)
    (tmp_path / "tables.json").write_text(json.dumps([CONFIG, CONFIG | {"name": "item"}]))

    def run(source: str, *options: str):
        arguments = ["place", str(tmp_path / source), "--devices", "2", "--memory-gb", "1", "--placer", "size_greedy"]
        return dreamshard(*arguments, "--home", str(tmp_path / "home"), *options)

    return run


def test_the_plan_of_a_model_loads_in_it(place, tmp_path):
    out = tmp_path / "plan.json"
    done = place("placed_model.py:make_model", "--format", "torchrec", "--device-type", "cpu", "--out", str(out))
    assert done.returncode == 0, done.stderr
    plan = load_plan(out, call(f"{tmp_path}/placed_model.py:make_model", "there is no model"))
    assert {path: list(tables) for path, tables in plan.plan.items()} == {"sparse": ["user"], "history": ["word"]}


def test_the_plan_of_a_model_has_only_ways_that_torchrecs_sharders_run(tmp_path):
    (tmp_path / "placed_model.py").write_text(MODEL)
    source, out = f"{tmp_path}/placed_model.py:make_odd", tmp_path / "plan.json"
    arguments = ["place", source, "--devices", "4", "--hardware", "h100", "--memory-gb", "4", "--devices-per-host", "2"]
    options = ["--format", "torchrec", "--out", str(out), "--budget-ms", "100", "--home", str(tmp_path / "home")]
    options += ["--sharding", "auto"]
    done = dreamshard(*arguments, *options)
    assert done.returncode == 0, done.stderr
    plan = load_plan(out, call(source, "there is no model")).plan
    assert plan["sparse"]["odd"].sharding_type == "data_parallel", "fbgemm's fused operator refuses 10 columns"
    assert plan["history"]["long"].sharding_type == "row_wise", "it is larger than a device, and offered nowhere else"
    assert "odd are copied to every rank" in done.notes
    assert "long are sharded only in ways" in done.notes


def test_a_models_types_and_optimizer_are_counted_and_its_notes_shown(place):
    done = place("placed_model.py:make_model", "--format", "json")
    assert done.returncode == 0, done.stderr
    devices = json.loads(done.stdout)["predicted"]["devices"]
    bytes_of = sorted(device["memory_bytes"] for device in devices)
    assert bytes_of == [100 * 16 * (4 + 8), 1000 * 8 * (2 + 8)]
    assert "the vectors of word are not pooled" in done.stderr
    assert "filled in by a Zipf law" in done.stderr


def test_what_a_list_lacks_is_as_ingested_last_before_the_first_champion(place, tmp_path):
    lake = open_store(Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path / "home")})).lake
    (tmp_path / "listed.csv").write_text("name,rows,dim,pooling_factor\nword,1000,8,5\nuser,101,16,3\n")
    ingested = tables_of([1000, 100], [8, 16], [5.004, 3.0], names=("word", "user"))
    version = dataset_version(ingested)
    lake.write_dataset(ingested, version, "listed")
    of = f"are from data set {version} (listed)"
    assert f"those of 2 of 2 tables {of}" in place("placed_model.py:make_model").stderr
    assert f"those of 1 of 2 tables {of}, the others have its mean reuse" in place("listed.csv").stderr


@pytest.mark.parametrize(
    ("name", "said"), [("mlperf-dlrm", "did you mean 'mlperf-dlrm-dcnv2'?"), ("x", "criteo-kaggle")]
)
def test_a_name_that_is_no_list_is_refused_with_those_that_are(name, said, tmp_path, monkeypatch):
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=f"no bundled list '{name}'") as refused:
        read_model(open_store(), Path(name), lambda _: None)
    assert said in str(refused.value)
