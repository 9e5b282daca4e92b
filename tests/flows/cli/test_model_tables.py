import json

import pytest
import torch

pytest.importorskip("torchrec")

from dreamshard.torchrec import load_plan
from dreamshard.workloads import Lookups, call
from storage.settings import Settings
from storage.store import open_store
from tests.flows.commands import dreamshard
from tests.helpers.meta_models import bag, bags
from tests.helpers.tables import tables_of

MODEL = """
import torch
from torch.distributed.optim import _apply_optimizer_in_backward
from torchrec.modules.embedding_configs import DataType
from tests.helpers.meta_models import bag, bags, sequences

def make_model():
    sparse, history = bags(bag("user", 100, 16)), sequences("word", 1000, 8, data_type=DataType.FP16)
    model = torch.nn.ModuleDict({"sparse": sparse, "history": history})
    _apply_optimizer_in_backward(torch.optim.Adam, model.parameters(), {"lr": 0.1})
    return model

def make_odd():
    sparse, history = bags(bag("odd", 1000, 10)), sequences("long", 20_000_000, 120)
    return torch.nn.ModuleDict({"sparse": sparse, "history": history})
"""
SMALL = ("--devices", "2", "--memory-gb", "1", "--placer", "size_greedy")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Call `place` on a source; the arguments are further options."""
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path / "home"))
    (tmp_path / "placed_model.py").write_text(MODEL)
    return lambda source, *options: dreamshard("place", tmp_path / source, *options)


def test_the_plan_of_a_model_loads_in_it(place, tmp_path):
    out = tmp_path / "plan.json"
    options = (*SMALL, "--format", "torchrec", "--device-type", "cpu", "--out", out)
    assert place("placed_model.py:make_model", *options).returncode == 0
    plan = load_plan(out, call(f"{tmp_path}/placed_model.py:make_model", "there is no model"))
    assert {path: list(tables) for path, tables in plan.plan.items()} == {"sparse": ["user"], "history": ["word"]}


def test_the_plan_of_a_list_loads_in_its_model_only(place, tmp_path, monkeypatch):
    def model(rows: int = 100) -> torch.nn.ModuleDict:
        return torch.nn.ModuleDict({"ebc": bags(bag("users", rows, 16), bag("words", 50, 8))})

    (tmp_path / "tables.csv").write_text("name,rows,dim,pooling_factor\nusers,100,16,1\nwords,50,8,3\n")
    out = tmp_path / "plan.json"
    done = place("tables.csv", "--devices", "4", *SMALL[2:], "--format", "torchrec", "--out", out)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    plan = load_plan(out, model(), device_type="cuda")
    devices = {
        str(shard.placement) for sharding in plan.plan["ebc"].values() for shard in sharding.sharding_spec.shards
    }
    assert devices <= {"rank:0/cuda:0", "rank:1/cuda:1", "rank:2/cuda:0", "rank:3/cuda:1"}
    with pytest.raises(ValueError):
        load_plan(out, model(200))


def test_a_models_plan_has_only_types_that_its_sharders_run(place, tmp_path):
    source, out = "placed_model.py:make_odd", tmp_path / "plan.json"
    options = ("--devices", "4", "--hardware", "h100", "--memory-gb", "4", "--devices-per-host", "2")
    done = place(source, *options, "--format", "torchrec", "--out", out, "--budget-ms", "100", "--sharding", "auto")
    assert done.returncode == 0, done.stderr
    plan = load_plan(out, call(f"{tmp_path}/{source}", "there is no model")).plan
    assert plan["sparse"]["odd"].sharding_type == "data_parallel", "fbgemm's fused operator refuses 10 columns"
    assert plan["history"]["long"].sharding_type == "row_wise", "it is larger than a device, and offered nowhere else"
    assert "odd are copied to every rank" in done.notes
    assert "long take only the sharding types" in done.notes


def test_a_models_types_and_optimizer_are_counted(place):
    done = place("placed_model.py:make_model", *SMALL)
    bytes_of = sorted(device["memory_bytes"] for device in json.loads(done.stdout)["predicted"]["devices"])
    assert bytes_of == [100 * 16 * (4 + 8), 1000 * 8 * (2 + 8)]
    assert "assumed by a Zipf law: " in done.stderr


def test_a_list_is_completed_by_the_newest_dataset_that_has_its_tables(place, tmp_path):
    lake = open_store(Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path / "home")})).lake
    (tmp_path / "listed.csv").write_text("name,rows,dim,pooling_factor\nword,1000,8,5\nuser,100,16,0.0005\n")
    versions = []
    for rows, names in (([1000, 100], ("word", "user")), ([1000, 7], ("word", "other"))):
        tables = tables_of(rows, [8, 16], [5.004, 3.0], names=names)
        for t in range(2):
            lake.write_table_lookups(Lookups(torch.tensor([0]), torch.tensor([0, 1])), tables.select([t]))
        versions.append(lake.write_dataset(tables, names[1]))
    of = f"are from dataset {versions[0]} (user)"
    assert f"unique_rows of 2 of 2 tables {of}" in place("placed_model.py:make_model", *SMALL).stderr
    assert f"unique_rows of 1 of 2 tables {of}; any others have its mean reuse" in place("listed.csv", *SMALL).stderr
    (tmp_path / "listed.csv").write_text("name,rows,dim\nword,1000,8\nother,7,16\nlast,9,8\n")
    assert "assumed by a Zipf law: " in place("listed.csv", *SMALL).stderr
