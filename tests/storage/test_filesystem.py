"""A lake on addresses: what it is given comes back from memory and from an S3 server, and other tools read it there."""

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
import torch

from dreamshard.costs import CostSample
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import Lookups, WorkloadTable, statistics
from storage import notebook
from storage.lake import catalog
from storage.lake.sample_buffer import collecting
from storage.settings import Settings
from storage.store import Store, open_store
from tests.helpers.lake import query
from tests.helpers.samples import make_evaluation, make_sample


@pytest.fixture(params=["memory", "s3"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A home on this machine and a store of its own elsewhere."""
    if request.param == "s3":
        for name, value in request.getfixturevalue("s3_environment").items():
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DREAMSHARD_STORE", f"{request.param}://team/{uuid4().hex}/o'neil & co")
    return open_store()


def test_what_a_lake_is_given_comes_back(settings: Store, tables: Tables, task: PlacementTask, sample: CostSample):
    lake, version = settings.lake, settings.lake.write_dataset(tables, "by hand")
    assert (lake.newest_dataset(), lake.read_dataset(version).names) == (version, tables.names)
    table = WorkloadTable("e", 10, 4, Lookups(torch.tensor([1, 1, 3]), torch.tensor([0, 1, 3])))
    described = statistics(table)
    lake.write_table_lookups(table, described)
    assert lake.lookup_source(lake.write_dataset(described, "one"))("e").indices.tolist() == [1, 1, 3]
    key = lake.write_tasks([task], version, "train")
    assert lake.read_tasks(version, "train", key)[0].tables.names == task.tables.names
    with collecting(lake, "run", 1, version) as keep:
        keep(sample)
        keep(make_sample(task, [0, 0, 0]))
    assert lake.read_cost_samples("run")[0].placement == sample.placement
    where = {"dataset_version": version, "testbed": "cluster", "hardware": "x"}
    lake.write_evaluation([make_evaluation(task, "random", 4.0)], {}, "key", **where)
    counted = "select count(*) as n from evaluations union all select count(*) from cost_samples"
    assert [row["n"] for row in query(settings, counted)] == [1, 2]


@pytest.mark.parametrize("settings", ["s3"], indirect=True)
def test_the_catalog_file_opens_in_another_process(settings: Settings, version: str):
    catalog.write_catalog(settings)
    assert len(notebook.view("tables", home=str(settings.store_root))) == 4
    reader = (
        "import sys, duckdb, fsspec; c = duckdb.connect(sys.argv[1], read_only=True); "
        "c.register_filesystem(fsspec.filesystem('s3')); print(c.sql('select count(*) from tables').fetchall())"
    )
    done = subprocess.run([sys.executable, "-c", reader, str(settings.catalog_path)], capture_output=True, text=True)
    assert done.stdout == "[(4,)]\n", done.stderr
