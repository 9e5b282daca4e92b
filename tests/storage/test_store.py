import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
import torch

from dreamshard.tables import ModelTable
from dreamshard.workloads import Lookups, statistics
from storage.lake import catalog
from storage.settings import Settings
from storage.store import Store, open_store
from tests.helpers.lake import query
from tests.helpers.samples import make_evaluation, make_sample


def opened(**environ: str) -> Store:
    return open_store(Settings.from_environment(environ))


def test_a_shared_store_holds_all_but_the_homes_own(tmp_path):
    store = opened(DREAMSHARD_HOME=str(tmp_path / "home"), DREAMSHARD_STORE="memory://team/a b")
    shared = (store.lake.root, store.checkpoints, store.evaluations, store.artifact_root)
    names = ("lake", "checkpoints", "evaluations", "mlartifacts")
    assert list(map(str, shared)) == [f"memory://team/a b/{name}" for name in names]
    assert store.catalog_path == tmp_path / "home" / "catalog.duckdb"
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["prefect"]


@pytest.mark.parametrize(
    ("home", "store"),
    [
        *(("file", ""), ("file/home", "")),
        *(("home", address) for address in ("file:///proc/dreamshard", "s3://nobody/x", "s4://team", "gs://team")),
    ],
)
def test_a_home_or_store_that_cannot_be_written_is_one_error(tmp_path, s3_environment, monkeypatch, home, store):
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError):
        opened(DREAMSHARD_HOME=str(tmp_path / home), DREAMSHARD_STORE=store)


def test_a_read_only_home_opens_for_readers():
    settings = Settings.from_environment({"DREAMSHARD_HOME": "/proc/self"})
    assert vars(open_store(settings, reads_only=True)) == vars(settings)
    with pytest.raises(ValueError):
        open_store(settings)


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_store_may_be_a_folder_and_mlflows_files_elsewhere(tmp_path, form):
    environment = {"DREAMSHARD_HOME": str(tmp_path / "home"), "DREAMSHARD_STORE": form.format(tmp_path / "drive")}
    settings = Settings.from_environment(environment | {"DREAMSHARD_ARTIFACTS": "s3://models/dreamshard"})
    assert settings.lake_root == tmp_path / "drive" / "lake"
    assert isinstance(settings.lake_root, Path)
    assert settings.artifact_root == "s3://models/dreamshard"


@pytest.fixture(params=["memory", "s3"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A home on this machine and a store of its own elsewhere."""
    if request.param == "s3":
        for name, value in request.getfixturevalue("s3_environment").items():
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DREAMSHARD_STORE", f"{request.param}://team/{uuid4().hex}/o'neil & co")
    return open_store()


def test_what_a_lake_is_given_comes_back(settings, tables, task, sample):
    lake, version = settings.lake, settings.lake.write_dataset(tables, "by hand")
    assert (lake.newest_dataset(), lake.read_dataset(version).names) == (version, tables.names)
    described = statistics(ModelTable("e", 10, 4), lookups := Lookups(torch.tensor([1, 1, 3]), torch.tensor([0, 1, 3])))
    lake.write_table_lookups(lookups, described)
    assert lake.lookup_source(lake.write_dataset(described, "one"))("e").indices.tolist() == [1, 1, 3]
    key = lake.write_tasks([task], version, "train")
    assert lake.read_tasks(version, "train", key)[0].tables.names == task.tables.names
    with lake.collecting("run", 1, version) as keep:
        keep(sample)
        keep(make_sample(task, [0, 0, 0]))
    assert lake.read_cost_samples("run")[0].placement == sample.placement
    where = {"dataset_version": version, "testbed": "cluster", "hardware": "x"}
    lake.write_evaluation([make_evaluation(task, "random", 4.0)], {}, "key", **where)
    counted = "select count(*) as n from evaluations union all select count(*) from cost_samples"
    assert [row["n"] for row in query(settings, counted)] == [1, 2]


@pytest.mark.parametrize("settings", ["s3"], indirect=True)
def test_the_catalog_file_opens_in_another_process(settings, version):
    catalog.write_catalog(settings)
    reader = (
        "import sys, duckdb, fsspec; c = duckdb.connect(sys.argv[1], read_only=True); "
        "c.register_filesystem(fsspec.filesystem('s3')); print(c.sql('select count(*) from tables').fetchall())"
    )
    done = subprocess.run([sys.executable, "-c", reader, str(settings.catalog_path)], capture_output=True, text=True)
    assert done.stdout == "[(4,)]\n", done.stderr
