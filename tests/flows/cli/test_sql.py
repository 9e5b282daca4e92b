import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from dreamshard.tasks import PlacementTask
from storage.lake.catalog import VIEWS
from storage.lake.parquet_files import datasets
from storage.settings import Settings
from storage.store import open_store
from tests.flows.commands import Done, dreamshard
from tests.helpers.lake import append_samples
from tests.helpers.samples import four_tables, make_sample


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with four tables and one sample in which table `a` is alone on a device."""
    home = tmp_path_factory.mktemp("measured")
    lake, tables = open_store(Settings.from_environment({"DREAMSHARD_HOME": str(home)})).lake, four_tables()
    version = lake.write_dataset(tables, "by hand")
    task = PlacementTask(tables.select([0, 2, 3]), 2, 10**6, name="train-000")
    append_samples(lake, [make_sample(task, [1, 0, 0])], "run", 1, version)
    return home


@pytest.fixture
def sql(measured: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    monkeypatch.setenv("DREAMSHARD_HOME", str(measured))
    return lambda *arguments: dreamshard("sql", *arguments)


def test_help_names_every_view_and_describe_lists_columns(sql):
    shown = " ".join(sql("--help").stdout.replace("│", " ").split())
    assert [view for view in VIEWS if f"{view}," not in shown and f"{view};" not in shown] == []
    described = json.loads(sql("describe tasks", "--json").stdout)
    assert [row["column_name"] for row in described] == datasets()["tasks"].names


def test_answers_are_written_as_csv_and_parquet(sql, tmp_path):
    query = "select name, dim, [rows, dim] as both from tables order by rows"
    assert sql(query, "--csv", tmp_path / "a.csv", "--parquet", tmp_path / "a.parquet").stdout == ""
    written = pd.read_parquet(tmp_path / "a.parquet")
    assert written["name"].tolist() == pd.read_csv(tmp_path / "a.csv")["name"].tolist() == ["a", "b/c", "d", "e"]
    assert written["both"][0].tolist() == [10, 4]


def test_costs_of_tables_are_those_measured_alone(sql):
    (row,) = json.loads(sql("from table_costs", "--json").stdout)
    assert (row["table_name"], row["origin"], row["samples"], row["is_current"]) == ("a", "measured", 1, True)
    assert row["compute_ms"] == pytest.approx(2 * 0.1 * (1 + 4))
    assert (row["hardware"], row["batch_size"]) == ("simulated H100", 512)
    assert (row["error"], row["model_version"]) == (None, None)


def test_a_long_answer_is_printed_in_part(sql):
    printed = sql("select range as r from range(100000000)", "--rows", "3")
    assert [line.split()[1] for line in printed.stdout.splitlines()[3:-1]] == ["0", "1", "2"]
    assert "more than 3 rows" in printed.stderr
    assert len(json.loads(sql("from range(2000)", "--json").stdout)) == 1000


def test_long_texts_are_cut_only_when_printed(sql):
    long = "select repeat('ab ', 20000) as text, 1 as number"
    printed = sql(long).stdout
    assert ("... (60,000 characters)" in printed, len(printed) < 5000) == (True, True)
    assert json.loads(sql(long, "--json").stdout) == [{"text": "ab " * 20000, "number": 1}]
