"""Drifted tables belong to a dataset's pool, not to the dataset."""

import pytest
import torch

from dreamshard.tables import Tables, concatenate
from dreamshard.task_sets.fixed_model import Drift, drifted
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import Lookups, WorkloadTable, dataset_version, statistics
from storage.lake import drifted_tables
from storage.lake.lake import Lake

TABLE = WorkloadTable("clicks", 100, 8, Lookups(torch.tensor([1, 1, 5], dtype=torch.int32), torch.tensor([0, 2, 3])))
DRIFT = Drift(table="clicks", rows=2.0, pooling=1.0)


@pytest.fixture
def lake(tmp_path) -> Lake:
    return Lake(tmp_path, tmp_path / "local")


def derive(lake: Lake, version: str) -> Tables:
    table = drifted(TABLE, DRIFT)
    tables = statistics(table)
    lake.write_table_lookups(table, tables)
    drifted_tables.write_drifted(lake.root, tables, version)
    return tables


def test_tasks_lookups_and_pool_know_drifted_tables_and_the_dataset_does_not(lake):
    dataset = statistics(TABLE)
    lake.write_table_lookups(TABLE, dataset)
    version = dataset_version(dataset)
    lake.write_dataset(dataset, version, "mine.csv")
    assert drifted_tables.with_lookups(lake.root, lake.pool_rows(version), [DRIFT.name]) == set()
    for _again in range(2):
        tables = derive(lake, version)
    assert lake.read_dataset(version).names == ("clicks",)
    assert lake.read_pool(version).names == ("clicks", DRIFT.name)
    assert lake.dataset_versions() == [version]
    task = PlacementTask(concatenate([dataset, tables]), 2, 2**20, name="variant-000 (+1 -0 ~0)")
    lake.write_tasks([task], version, "test", "key")
    assert lake.read_tasks(version, "test", "key")[0].tables.rows.tolist() == [100, 200]
    assert lake.lookup_source(version)(DRIFT.name).batch_size == 2
    assert drifted_tables.with_lookups(lake.root, lake.pool_rows(version), [DRIFT.name, "other"]) == {DRIFT.name}


def test_a_drifted_table_whose_lookups_were_removed_is_derived_again(lake):
    dataset = statistics(TABLE)
    lake.write_table_lookups(TABLE, dataset)
    version = dataset_version(dataset)
    lake.write_dataset(dataset, version, "mine.csv")
    tables = derive(lake, version)
    lake.write_table_lookups(drifted(TABLE, DRIFT), tables).unlink()
    assert drifted_tables.with_lookups(lake.root, lake.pool_rows(version), [DRIFT.name]) == set()
