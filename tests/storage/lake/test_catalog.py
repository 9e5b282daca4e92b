import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
import torch

from dreamshard.costs import CostSample, Exchange
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import dataset_version
from storage.filesystem import list_files, writing
from storage.lake import catalog, schemas
from storage.lake.lake import Lake
from storage.lake.measured_alone import write_exchanges
from storage.lake.parquet_files import write_rows
from storage.settings import Settings
from tests.helpers.lake import append_samples
from tests.helpers.samples import make_evaluation, make_sample
from tests.helpers.testbeds import simulated


@pytest.fixture
def filled(lake: Lake, sample: CostSample, task: PlacementTask, version: str) -> None:
    lake.write_tasks([task], version, "train", "set")
    write_exchanges(lake.root, "abacus", [simulated().measure_exchange(Exchange(sent_bytes=torch.tensor([8, 8])))])
    append_samples(lake, [sample, make_sample(task, [0, 0, 0], "cluster")], "run", 1, version)
    lake.write_evaluation(
        [make_evaluation(task, "random", 4.0)], {}, "key", dataset_version=version, testbed="cluster", hardware="x"
    )
    write_rows(lake.root / "versions" / "versions.parquet", [{"version": 1}], schemas.VERSIONS)


def test_the_version_of_a_registered_contestant_is_kept_and_what_did_not_fit_is_left_out_of_averages(
    lake: Lake, settings: Settings, task: PlacementTask, version: str
):
    costs = {"champion 3": 4.0, "dreamshard": 2.0, "random": float("inf")}
    rows = [make_evaluation(task, placer, overall_ms) for placer, overall_ms in costs.items()]
    lake.write_evaluation(
        rows, {"champion 3": "models:/m/3"}, "key", dataset_version=version, testbed="cluster", hardware="x"
    )
    found = catalog.query(settings, "select placer, model_version, overall_ms from evaluations order by placer")
    assert [tuple(row.values()) for row in found] == [
        ("champion 3", 3, 4.0),
        ("dreamshard", None, 2.0),
        ("random", None, None),
    ]
    assert catalog.query(settings, "select avg(overall_ms) as mean from evaluations") == [{"mean": 3.0}]


def test_reference_tasks_are_a_split_of_their_own_and_their_tables_are_nobodys(
    lake: Lake, settings: Settings, task: PlacementTask, version: str
):
    of_reference = task.tables.select([0, 1])
    other = dataset_version(of_reference)
    lake.write_dataset(of_reference, other, "reference set", newest=False)
    where = {"testbed": "cluster", "hardware": "x"}
    row = make_evaluation(task, "dreamshard", 2.0)
    lake.write_evaluation([row], {}, "own", dataset_version=version, **where)
    lake.write_evaluation([row], {}, "reference-1", dataset_version=other, split="reference", **where)
    found = catalog.query(settings, "select run_key, split from evaluations order by run_key")
    assert [tuple(row.values()) for row in found] == [("own", "heldout"), ("reference-1", "reference")]
    assert catalog.query(settings, "select distinct dataset_version as v from tables") == [{"v": version}]
    lake.write_dataset(of_reference, other, "their own now")
    assert len(catalog.query(settings, "select distinct dataset_version from tables")) == 2


PLACEMENTS = ["origin", "origin_id", "run_key", "dataset_version", "testbed", "hardware", "task", "placer"]
PLACEMENTS += ["num_devices", "table_name", "device"]
OF_FILES = [view for view in catalog.VIEWS if hasattr(schemas, view.upper())]


@pytest.mark.parametrize("view", catalog.VIEWS)
def test_a_view_has_the_same_columns_before_and_after_the_first_file(
    settings: Settings, view: str, request: pytest.FixtureRequest, lake: Lake, task: PlacementTask
):
    def described() -> list[tuple[str, str]]:
        return [
            (row["column_name"], row["column_type"])
            for row in catalog.query(settings, f"describe select * from {view}")
        ]

    empty = described()
    if view in OF_FILES:
        derived = ["model"] if view == "evaluations" else []
        assert [name for name, _ in empty] == [*getattr(schemas, view.upper()).names, *derived]
    if view == "placements":
        assert [name for name, _ in empty] == PLACEMENTS
    assert catalog.query(settings, f"select * from {view}") == []
    request.getfixturevalue("filled")
    if view == "evaluated_devices":
        append_samples(lake, [make_sample(task, [0, 0, 1])], "key", 0, request.getfixturevalue("version"))
    assert described() == empty
    assert catalog.query(settings, f"select count(*) as n from {view}")[0]["n"] > 0


def test_a_sample_is_one_row_and_each_of_its_devices_is_one(settings: Settings, filled: None):
    by_hardware = catalog.query(settings, "select hardware, avg(overall_ms) as mean from cost_samples group by 1")
    assert by_hardware == [{"hardware": "simulated H100", "mean": 2.0}]
    devices = catalog.query(
        settings,
        "select device, device_ms, num_tables, memory_bytes, sum_dim, single_table, shard_tables from device_costs "
        "where testbed = 'simulated:h100' order by device",
    )
    first, second = (tuple(row.values()) for row in devices)
    assert first == (0, pytest.approx(1.0), 1, 10 * (2 * 4 + 4), 4, "a", ["a"])
    assert second == (1, pytest.approx(2.0), 2, 30 * (2 * 16 + 4) + 40 * (2 * 32 + 4), 48, None, ["d", "e"])


def test_placements_name_the_device_of_every_table(settings: Settings, filled: None):
    found = catalog.query(
        settings,
        "select origin, testbed, placer, table_name, device from placements order by origin, testbed, table_name",
    )
    rows = [tuple(row.values()) for row in found]
    assert rows[:3] == [("cost_sample", "cluster", None, name, 0) for name in ("a", "d", "e")]
    assert rows[3:6] == [("cost_sample", "simulated:h100", None, n, d) for n, d in (("a", 0), ("d", 1), ("e", 1))]
    assert rows[6:] == [("evaluation", "cluster", "random", n, d) for n, d in (("a", 0), ("d", 0), ("e", 1))]


def test_a_query_of_one_testbed_opens_only_its_files(settings: Settings, filled: None):
    sql = "explain analyze select count(*) from device_costs where testbed = 'simulated:h100'"
    with catalog.connect(settings) as connection:
        plan = str(connection.sql(sql).fetchall())
    assert "1/2" in plan


def test_describe_lists_the_columns_of_a_view_whatever_it_is_called(settings: Settings):
    for sql in ("describe tables", 'DESCRIBE "tables";'):
        found = catalog.query(settings, sql)
        assert [row["column_name"] for row in found] == schemas.TABLES.names
        assert {row["column_name"]: row["column_type"] for row in found}["rows"] == "BIGINT"
    assert [row["name"] for row in catalog.query(settings, "show tables")] == sorted(catalog.VIEWS)


def test_what_duckdb_cannot_answer_is_one_sentence_that_names_the_views(settings: Settings):
    for sql in ("select nope from cost_samples", "selec 1", "select * from costs"):
        with pytest.raises(
            ValueError, match=r"DuckDB cannot answer this: .*tables, table_costs, tasks, cost_samples"
        ) as caught:
            catalog.query(settings, sql)
        assert "\n" not in str(caught.value)


READER = "import duckdb, sys; print(duckdb.connect(sys.argv[1], read_only=True).sql(sys.argv[2]).fetchall())"


@pytest.mark.processes
def test_the_catalog_opens_from_another_folder_and_sees_what_is_written_later(
    settings: Settings, lake: Lake, filled: None, sample: CostSample, version: str, tmp_path: Path
):
    catalog.write_catalog(settings)
    append_samples(lake, [make_sample(sample.task, [1, 1, 1])], "run", 2, version)
    counted = subprocess.run(
        [sys.executable, "-c", READER, str(settings.catalog_path), "select count(*) from cost_samples"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert counted.stdout == "[(3,)]\n"


def test_the_catalog_is_replaced_under_an_open_reader(settings: Settings, request: pytest.FixtureRequest):
    catalog.write_catalog(settings)
    with duckdb.connect(settings.catalog_path, read_only=True) as reader:
        request.getfixturevalue("filled")
        catalog.write_catalog(settings)
        assert reader.sql("select count(*) from cost_samples").fetchall() == [(0,)]  # written while there was none
    with duckdb.connect(settings.catalog_path, read_only=True) as reader:
        assert reader.sql("select count(*) from cost_samples").fetchall() == [(2,)]
    assert [path.name for path in settings.home.glob("catalog*")] == ["catalog.duckdb"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda _: b"a text that is no Parquet",
        lambda valid: valid[: len(valid) // 2],
    ],
    ids=["empty", "text", "truncated"],
)
@pytest.mark.parametrize(
    "use", [lambda s: catalog.query(s, "from tables"), catalog.write_catalog], ids=["sql", "catalog"]
)
def test_a_damaged_file_of_the_lake_is_named_in_one_sentence(settings: Settings, filled: None, damage, use):
    [valid, *_] = list_files(settings.lake_root / "cost_samples", "**/*.parquet")
    damaged = valid.parent / "damaged.parquet"
    with writing(damaged) as file:
        file.write(damage(valid.read_bytes()))
    with pytest.raises(ValueError, match=r"cannot read the lake .*run the stage that writes it again") as refused:
        use(settings)
    assert damaged.name in str(refused.value)
    assert "\n" not in str(refused.value)
