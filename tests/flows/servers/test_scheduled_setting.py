"""Where the setting of the scheduled flows comes from, and that it fits before anything starts."""

import dataclasses

import pytest

from flows.forms.options import RetrainingOptions
from flows.servers import fitting
from flows.servers.scheduled_setting import keep, schedule_fields, settled
from storage.schedule import FILE, Schedule, read_schedule
from storage.settings import Settings
from storage.store import open_store


def test_the_schedule_has_the_fields_of_a_retraining():
    of_flow = {field.name for field in dataclasses.fields(RetrainingOptions)} - {"seed"}
    assert {field.name for field in dataclasses.fields(Schedule)} == of_flow
    assert {field.name for field in schedule_fields()} == of_flow


def test_an_option_wins_over_the_environment_and_that_over_what_the_home_kept(tmp_path):
    keep(tmp_path, Schedule(num_devices=2, memory_gb=1.0, testbed="simulated", tables_per_task=8))
    environ = {"DREAMSHARD_DEVICES": "4", "DREAMSHARD_MEMORY_GB": "2.5"}
    schedule, origins = settled({"num_devices": "8", "mode": None}, tmp_path, environ)
    assert schedule == Schedule(num_devices=8, memory_gb=2.5, testbed="simulated", tables_per_task=8)
    found = {origin.field.name: origin.found for origin in origins}
    assert found["num_devices"] == "given as --devices"
    assert found["memory_gb"] == "from DREAMSHARD_MEMORY_GB"
    assert found["testbed"] == "kept by the home"
    assert found["mode"] == "not set: the recipe's, or derived"


def test_what_is_kept_holds_at_the_next_start_until_an_empty_value_unsets_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables.csv").touch()
    home = tmp_path / "home"
    keep(home, settled({"source": "tables.csv", "num_devices": "4"}, home, {})[0])
    assert settled({}, home, {})[0] == Schedule(source=f"{tmp_path}/tables.csv", num_devices=4)
    assert settled({"num_devices": ""}, home, {})[0].num_devices is None
    assert settled({}, home, {"DREAMSHARD_SOURCE": ""})[0].source is None
    keep(home, settled({"num_devices": ""}, home, {})[0])
    assert read_schedule(home) == Schedule(source=f"{tmp_path}/tables.csv")


@pytest.mark.parametrize(
    ("given", "environ", "refused"),
    [
        ({"num_devices": "four"}, {}, r"--devices is 'four', but input should be a valid integer.*an empty one"),
        ({"num_devices": "0"}, {}, r"--devices is '0', but input should be greater than or equal to 1"),
        (
            {},
            {"DREAMSHARD_MODE": "fluid"},
            r"DREAMSHARD_MODE is 'fluid', but input should be 'auto', 'fixed' or 'pool'",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_it_was_given(tmp_path, given, environ, refused):
    with pytest.raises(ValueError, match=refused):
        settled(given, tmp_path, environ)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / FILE).write_text('{"devices": 8}')
    with pytest.raises(ValueError, match=rf"{FILE} is no setting of the scheduled flows \(devices: .* remove it"):
        settled({}, tmp_path, {})


@pytest.fixture
def tables(tmp_path):
    """60 tables of 50 MB, 2.8 GiB together."""
    file = tmp_path / "tables.csv"
    file.write_text("name,rows,dim,pooling_factor\n" + "".join(f"t{t},195312,64,2\n" for t in range(60)))
    return str(file)


def fit(tmp_path, measures_here=False, **setting):
    def store():
        return open_store(Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path / "home")}))

    return fitting.check_fit(Schedule(**setting), store, measures_here=measures_here)


def test_tables_that_cannot_fit_are_refused_and_those_that_can_are_described(tmp_path, tables):
    with pytest.raises(ValueError, match=r"need 2\.79 GiB, more than the 2 GiB of 2 devices together.*--memory-gb"):
        fit(tmp_path, source=tables, num_devices=2, memory_gb=1, mode="fixed")
    with pytest.raises(ValueError, match=r"table 't\d+' .* needs 0\.0466 GiB.*more than the 0\.04\d* GiB"):
        fit(tmp_path, source=tables, num_devices=20, memory_gb=0.04, mode="pool", tables_per_task=10)
    (note,) = fit(tmp_path, source=tables, num_devices=4, memory_gb=1, mode="fixed")
    assert "one model of all 60 tables on 4 devices of 1 GiB, recipe default" in note
    (note,) = fit(tmp_path, source=tables, testbed="simulated:a100")
    assert (
        "a pool (tasks of 20 of 60 tables; --mode fixed if all are one model) on 2 devices of 70 GiB (derived)" in note
    )
    assert "batches of 65536 samples" in note
    (note,) = fit(tmp_path, source=tables, testbed="simulated:a100", recipe="smoke", batch_size=4096, mode="pool")
    assert "batches of 4096 samples" in note
    setting = {"source": tables, "num_devices": 2, "memory_gb": 1, "tables_per_task": 10}
    _, warning = fit(tmp_path, **setting)
    assert warning.startswith("warning: ")
    assert "2.79 GiB, more than the 2 GiB of 2 devices together" in warning
    assert "if all 60 tables are one model, give --mode fixed" in warning
    assert len(fit(tmp_path, **setting, mode="pool")) == 1


def test_of_what_only_workers_see_it_is_said_that_it_was_not_checked(tmp_path, tables):
    (note,) = fit(tmp_path, source=str(tmp_path / "absent.csv"), memory_gb=1)
    assert "is not on this machine, so whether its tables fit was not checked" in note
    (note,) = fit(tmp_path, source=tables, testbed="cluster:cuda")
    assert "only a worker knows the memory of testbed cluster:cuda" in note
    (tmp_path / "data.pt").touch()
    (note,) = fit(tmp_path, source=str(tmp_path / "data.pt"), memory_gb=1)
    assert "are known once it is ingested" in note
    assert fit(tmp_path) == []


def test_a_source_that_is_nowhere_is_refused_where_the_flows_run_and_a_misspelt_name_everywhere(tmp_path):
    with pytest.raises(ValueError, match=r"flows would have no tables: there is no file .*absent\.csv"):
        fit(tmp_path, source=str(tmp_path / "absent.csv"), measures_here=True)
    for measures_here in (False, True):
        with pytest.raises(ValueError, match=r"there is no workload 'critoe' \(is criteo-kaggle meant\?\)"):
            fit(tmp_path, source="critoe", measures_here=measures_here)
