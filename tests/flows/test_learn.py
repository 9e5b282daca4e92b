"""`dreamshard learn` on profiles of a real TorchRec job on four gloo ranks."""

import gzip
import json
from functools import partial

import fsspec
import pytest
import torch

from dreamshard.costs import TRACED
from dreamshard.plan import read_plan
from dreamshard.tables import Placement
from dreamshard.workloads import list_tables
from flows.forms.options import WatchOptions
from flows.learn import fastest, profiles_in
from flows.watch import learn_from_new
from storage.mlflow_store import registry
from storage.settings import Settings
from tests.flows.commands import failed_with
from tests.helpers.profiled_job import BATCH, NAMES, RANKS, STEPS, profile
from tests.helpers.samples import sample_of_phases
from tests.helpers.tables import roomy_task, tables_of_dims


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job") / "profile"
    profile(folder)
    return folder


def test_a_profile_becomes_samples_a_version_and_a_plan(profiled, dreamshard, tmp_path, s3_environment, monkeypatch):
    home = tmp_path / "home"
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    assert all(gzip.decompress(path.read_bytes()) for path in profiled.glob("rank*.json.gz"))
    listed = {
        (table.module_path, table.module_class.rpartition(".")[2]) for table in list_tables(profiled / "tables.json")
    }
    assert listed == {("bags", "EmbeddingBagCollection")}
    done = dreamshard(
        "learn", profiled, "--hardware", "a100", "--memory-gb", "4", "--out", tmp_path / "new.json", "--json", home=home
    )
    assert done.returncode == 0, done.stderr
    outcome, plan = json.loads(done.stdout), read_plan(tmp_path / "new.json")
    assert (outcome["profiles"], outcome["ranks_traced"], set(plan.tables)) == (1, RANKS, set(NAMES))
    low, mean, high = outcome["saving"][1], outcome["saving"][0], outcome["saving"][2]
    assert low < mean < high
    (version,) = registry.versions(Settings.from_environment())
    assert (version.uri, version.is_champion, bool(version.provisional)) == (outcome["version"], True, True)
    assert (version.measured_on.testbed, version.measured_on.batch_size) == ("traced", BATCH * RANKS)
    assert version.measured_on.optimizer == "rowwise_adagrad"
    question = (
        "select device, forward_compute_ms, repeats from device_costs join cost_samples using (sample_id) order by 1"
    )
    rows = json.loads(dreamshard("sql", question, "--json", home=home).stdout)
    assert [row["device"] for row in rows] == list(range(RANKS))
    assert all(row["forward_compute_ms"] > 0 for row in rows)
    assert {row["repeats"] for row in rows} == {STEPS}
    placed = dreamshard(
        "place", profiled / "tables.json", "--placer", outcome["version"], "--memory-gb", "4", home=home
    )
    assert placed.returncode == 0, placed.stderr
    profile(tmp_path / "next", tmp_path / "new.json")  # the job trains by the new plan
    fsspec.filesystem("s3").put(f"{tmp_path}/next/", "team/profiles/tuesday/", recursive=True)
    (next_profile,) = profiles_in("s3://team/profiles")
    done = dreamshard("learn", profiled, next_profile, "--hardware", "a100", "--json", home=home)
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert (again["profiles"], again["ranks_traced"]) == (2, RANKS)
    assert again["version"] != outcome["version"]
    assert again["fastest"] in ("profile", "tuesday")


def test_a_new_plan_is_compared_with_the_fastest_plan_of_the_same_job():
    job = partial(sample_of_phases, roomy_task(tables_of_dims([4, 8])), Placement.whole([0, 1], 2), testbed=TRACED)
    one = torch.ones(2, 4)
    slow, fast, newest, other = job(3 * one), job(one), job(2 * one), job(one / 2, batch_size=2)
    part = job(torch.tensor([[0.5], [torch.nan]]) * one)  # its unseen rank may be slow
    assert fastest([slow, fast, part, other, newest]) is fast
    assert fastest([fast, part]) is part


def test_new_profiles_of_a_folder_are_found(profiled):
    assert [*profiles_in(str(profiled.parent))] == [str(profiled)]
    said = learn_from_new(WatchOptions(profiles=str(profiled.parent), start=False), "ads")
    assert said == f"Profiles in {profiled.parent}: {profiled.name}."


def test_what_is_missing_is_said_in_a_sentence(profiled, dreamshard, tmp_path):
    failed_with(dreamshard("learn", tmp_path / "nowhere", home=tmp_path / "home"), "there is no profile")
    (tmp_path / "empty").mkdir()
    failed_with(dreamshard("learn", tmp_path / "empty", "--hardware", "a100", home=tmp_path / "home"), "batch-size")
    failed_with(dreamshard("learn", profiled, home=tmp_path / "home"), "no preset of CPU", "--hardware")
