import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dreamshard.workloads import WorkloadConfig
from flows.runtime import sources
from storage.store import open_store
from tests.flows.commands import Dreamshard, files


@pytest.fixture(autouse=True)
def _tracking(mlflow_home: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{mlflow_home()}/mlflow.db")


def ingested(dreamshard: Dreamshard, source: object, home: Path, *options: str) -> dict:
    done = dreamshard("ingest", str(source), *(options or ("--recipe", "smoke")), "--json", home=home)
    assert done.returncode == 0, done.sentence
    return json.loads(done.stdout)


def save(path: Path, samples: int) -> Path:
    """Two tables of one lookup per sample, both of row 3."""
    lookups = torch.full((2 * samples,), 3)
    offsets = torch.arange(2 * samples + 1)
    torch.save((lookups, offsets, torch.ones(2, samples, dtype=torch.int64)), path)
    return path


def test_only_a_changed_file_is_ingested_again(dreamshard: Dreamshard, tmp_path: Path):
    source, listed, home = save(tmp_path / "d.pt", samples=4), tmp_path / "d.tables.csv", tmp_path / "home"
    listed.write_text("name,rows,dim\nuser,100,32\nitem,10,64\n")
    first = ingested(dreamshard, source, home)
    assert (first["new_tables"], first["lookups"]) == (2, 4 + 4)
    again = ingested(dreamshard, source, home)
    assert (again["new_tables"], again["dataset"]) == (0, first["dataset"])
    listed.write_text("name,rows,dim\nuser,100,32\nitem,20,64\n")
    resized = ingested(dreamshard, source, home)
    assert resized["dataset"] != first["dataset"]
    save(source, samples=5)
    longer = ingested(dreamshard, source, home)
    assert (longer["new_tables"], longer["lookups"]) == (2, 5 + 5)


LIST = "name,rows,dim,pooling_factor\nuser,100,32,2\nitem,10,64,1\nshop,1000,8,3\n"


def test_only_new_and_changed_tables_of_a_folder_are_ingested(dreamshard: Dreamshard, tmp_path: Path):
    folder, home = tmp_path / "tables", tmp_path / "home"
    folder.mkdir()
    (folder / "tables.csv").write_text(LIST)
    first = ingested(dreamshard, folder, home)
    assert (first["new_tables"], first["reused_tables"], first["tables"]) == (3, 0, 3)
    before = files(home / "lake" / "lookups")
    again = ingested(dreamshard, folder, home)
    assert (again["new_tables"], again["reused_tables"], again["dataset"]) == (0, 3, first["dataset"])
    (folder / "tables.csv").write_text("name,rows,dim,pooling_factor\nnew,50,4,1\nitem,10,128,1\nuser,100,32,2\n")
    changed = ingested(dreamshard, folder, home)
    assert (changed["new_tables"], changed["reused_tables"], changed["tables"]) == (2, 1, 3)
    assert changed["dataset"] != first["dataset"]
    after = files(home / "lake" / "lookups")
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 2
    fresh = ingested(dreamshard, folder, tmp_path / "another home")
    assert (fresh["dataset"], fresh["new_tables"]) == (changed["dataset"], 3)


def test_tables_whose_lookups_were_removed_are_ingested_again(dreamshard: Dreamshard, tmp_path: Path):
    (tmp_path / "t.csv").write_text(LIST)
    first = ingested(dreamshard, tmp_path / "t.csv", tmp_path / "home")
    removed = next((tmp_path / "home" / "lake" / "lookups").iterdir())
    removed.unlink()
    again = ingested(dreamshard, tmp_path / "t.csv", tmp_path / "home")
    assert (again["new_tables"], again["dataset"]) == (1, first["dataset"])
    assert removed.is_file()


MODEL = """
import torch
from torchrec import KeyedJaggedTensor
from tests.helpers.meta_models import bag, bags

calls = 0

def make_model():
    global calls
    calls += 1
    return bags(bag("user", 100, 16, ["u"]), bag("item", 50, 6, ["i", "j"]))

def make_batches():
    for shift in range(4):
        keys, lengths = ["u", "i", "j"], torch.ones(6, dtype=torch.int64)
        yield KeyedJaggedTensor(keys=keys, values=torch.tensor([1, 2, 3, 4, 5, 5]) + shift, lengths=lengths)
"""


def test_a_torchrec_model_is_ingested_with_its_batches(dreamshard: Dreamshard, tmp_path: Path):
    pytest.importorskip("torchrec")
    (tmp_path / "lake_model.py").write_text(MODEL)
    model, batches = f"{tmp_path}/lake_model.py:make_model", f"{tmp_path}/lake_model.py:make_batches"

    def run(*options: str) -> dict:
        return ingested(dreamshard, model, tmp_path / "home", "--recipe", "default", *options)

    two = run("--batches", batches, "--batch-size", "4")
    assert (two["tables"], two["new_tables"], two["samples"], two["lookups"]) == (2, 2, 4, 12)
    assert any("4 samples of 2 batches" in note for note in two["notes"])
    tables = open_store().lake.read_dataset(two["dataset"])
    assert (tables.names, tables.dim.tolist(), tables.unique_rows.tolist()) == (("user", "item"), [16, 8], [3, 4])
    again = run("--batches", batches, "--batch-size", "4")
    assert (again["dataset"], again["reused_tables"]) == (two["dataset"], 2)
    assert run("--batches", batches)["samples"] == 8
    assert run()["samples"] > 8  # by a Zipf law


def test_a_model_is_made_once_until_its_source_is_closed(tmp_path: Path):
    pytest.importorskip("torchrec")
    (tmp_path / "sourced_model.py").write_text(MODEL)
    config = WorkloadConfig(source=f"{tmp_path}/sourced_model.py:make_model", batch_size=8, dim=None)
    sources.close()
    token = sources.token_of(config)
    assert [table.name for table in sources.opened_source(config, token).listed] == ["user", "item"]
    assert sources.opened_source(config, token).notes
    import sourced_model

    assert sourced_model.calls == 1
    with pytest.raises(ValueError):
        sources.opened_source(config, "another")
    sources.close()
    assert sources.token_of(config) == token
