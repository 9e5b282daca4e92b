import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from dreamshard.costs import MeasuredOn
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingConfig
from dreamshard.workloads.task_sampling import EMPTY_SPLIT, split_tables
from flows import stages
from flows.evaluate import upgrade_sentence
from flows.reports.pages import html_page
from flows.rules import contestants
from storage.mlflow_store import registry, runs
from storage.mlflow_store.registry import set_alias
from storage.settings import Settings
from storage.store import Store, open_store
from tests.flows.commands import failed_with, files
from tests.helpers.lake import append_samples
from tests.helpers.samples import make_sample
from tests.helpers.tables import tables_of
from tests.helpers.trained import make_placer, start_training
from tests.helpers.versions import training_of, version_of

ONE, TWO = (f"models:/dreamshard.by-hand.a-machine-x2/{number}" for number in (1, 2))


def pool_of(count: int) -> Tables:
    """Tables t00, t01, ... of 512 samples each, none so heavy that it would be split by columns."""
    steps = range(1, count + 1)
    return tables_of(
        [1000 * step for step in steps],
        16,
        [8.0 + step for step in steps],
        names=[f"t{t:02}" for t in range(count)],
        batch_size=512,
        bins=[[1.0]] * count,
        unique_rows=[500 * step for step in steps],
    )


@pytest.fixture(scope="module")
def home(mlflow_home: Callable[[], Path]) -> Path:
    """Versions 1 and 2, untrained, recorded as trained on the train tables that seeds 0 and 1 draw from 40; 1 is champion."""
    settings, pool = Settings.from_environment({"DREAMSHARD_HOME": str(mlflow_home())}), pool_of(40)
    dataset = open_store(settings).lake.write_dataset(pool, "by hand")
    for seed in (0, 1):
        half, rest = split_tables(pool, torch.Generator().manual_seed(seed))
        open_store(settings).lake.write_table_split(f"tasks{seed}", EMPTY_SPLIT.with_tables(half, rest))
        same = {"recipe": "none", "source": "by hand", "dataset": dataset, "testbed": "simulated"}
        made_of = training_of("simulated", "a machine", tasks=f"tasks{seed}", tables_per_task=6, **same)
        placer = make_placer(start_training(half, TrainingConfig(), seed=seed))
        with runs.open_run(settings, "retrain", tags={"commit": "0123456789abcdef", "testbed": "simulated"}) as run:
            tags = {"training": f"t{seed}", "iteration": 1, "dataset": dataset}
            metrics = {"cost_ms": 3 - seed}
            runs.register_placer(settings, placer, run, made_of, metrics=metrics, tags=tags)
    set_alias(settings, ONE, "champion", "the first")
    set_alias(settings, TWO, "challenger", "no better")
    return settings.home


@pytest.fixture(scope="module")
def said(home: Path, in_json):
    return partial(in_json, home=home)


@pytest.fixture(scope="module")
def compared(said) -> dict:
    """The comparison of version 1, version 2 and a heuristic."""
    return said("compare", "champion", "2", "dim_greedy")


@pytest.fixture
def store(home: Path) -> Store:
    return open_store(Settings.from_environment({"DREAMSHARD_HOME": str(home)}))


def test_tasks_hold_no_table_that_a_version_was_trained_on(store, compared, said):
    known = registry.versions(store)
    trained = {name for version in known for name in store.lake.read_table_split(version.made_of.tasks).train}
    used = {row["name"] for row in said("sql", "select distinct unnest(table_names) as name from evaluations")}
    assert len(trained) > 20  # the two splits differ, so neither's own test tables are held out for both
    assert used
    assert used.isdisjoint(trained)
    assert f"{40 - len(trained)} tables" in compared["held_out"]


def test_every_pair_is_compared_on_the_same_tasks(store, compared, said):
    assert {registry.find(store, version).tags["comparison"] for version in (ONE, TWO)} == {compared["comparison"]}
    report = json.loads(Path(compared["report"]).read_text())
    assert report["versions"] == {"version 1": ONE, "version 2": TWO}
    names = {"version 1", "version 2", "dim_greedy"}
    assert {name: set(gains) | {name} for name, gains in report["gains"].items()} == dict.fromkeys(names, names)
    measured = said("sql", "select task, placer, overall_ms, model_version from evaluations")
    costs = {(row["task"], row["placer"]): row["overall_ms"] for row in measured}
    assert len(costs) == 3 * 4
    ratios = [costs[task, "version 2"] / costs[task, "version 1"] for task in dict.fromkeys(task for task, _ in costs)]
    assert report["gains"]["version 2"]["version 1"]["mean_gain"] == pytest.approx(1 - math.prod(ratios) ** 0.25)
    versions = {row["placer"]: row["model_version"] for row in measured}
    assert versions == {"dim_greedy": None, "version 1": 1, "version 2": 2}


def test_the_same_comparison_is_not_measured_again(home, compared, said):
    before = files(home / "lake")
    assert said("compare", "1", "challenger", "dim_greedy")["table"] == compared["table"]
    assert files(home / "lake") == before


def test_versions_of_one_half_meet_on_the_tasks_of_evaluate(store):
    one = registry.find(store, ONE)
    for seed, is_same in ((0, True), (1, False)):
        training = replace(one.made_of, testbed=replace(one.made_of.testbed, seed=seed))
        drawn = stages.draw_tasks(store, training)
        assert (stages.draw_heldout_tasks.fn(store, training, [one]) == drawn) is is_same


def test_a_champion_trained_on_held_out_tables_is_flagged(store):
    pool = pool_of(40)
    known, fresh = split_tables(pool, torch.Generator().manual_seed(0))
    task = PlacementTask(pool.named([*known.names[:2], fresh.names[0]]), 2, 2**30)
    one = registry.find(store, ONE)
    assert "version 1 was trained on 2 of the 3 tables" in contestants.bias_caveat(store, one, [task])
    assert contestants.bias_caveat(store, one, [PlacementTask(fresh, 2, 2**30)]) == ""


@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        (("1", "7"), ("no version '7'", ONE)),
        (("1", "magic"), ("'magic'", "dim_greedy", "torchrec_planner")),
        (("1", "champion"), ("version 1 alone",)),
        (("dim_greedy", "random"), ("none of the placers is a version",)),
    ],
)
def test_wrong_comparisons_are_one_sentence(home, shared_dreamshard, words, reasons):
    failed_with(shared_dreamshard("compare", *words, home=home), *reasons)


def test_models_shows_the_facts_and_one_version_in_full(home, said, shared_dreamshard):
    shown = shared_dreamshard("models", home=home).stdout
    for word in ("champion", "challenger", "a machine", "0123456789ab", "cost_ms", "no better"):
        assert word in shown
    first, second = said("models")[::-1]
    assert (first["reference"], second["version"], second["recipe"]) == (ONE, 2, "none")
    assert "no better" in shared_dreamshard("models", "challenger", home=home).stdout
    assert said("models", "2")["cost_ms"] == 2
    failed_with(shared_dreamshard("models", "9", home=home), "no version '9'", TWO)


def test_promote_changes_the_champion_and_previous_undoes_it(home, store, compared, shared_dreamshard):
    failed_with(shared_dreamshard("promote", "9", home=home), "no version '9'", ONE, TWO)
    done = shared_dreamshard("promote", "2", "--reason", "a hunch", home=home)
    assert f"To roll back: dreamshard promote {ONE}" in done.stdout
    assert [registry.find(store, alias).uri for alias in ("champion", "previous")] == [TWO, ONE]
    assert shared_dreamshard("promote", "previous", home=home).returncode == 0
    assert "roll back" not in shared_dreamshard("promote", "1", home=home).stdout


def test_an_upgrade_shows_what_it_changed_for_the_same_placements(store):
    pool, setting = pool_of(8), {"precision": "fp32", "optimizer": "sgd", "batch_size": 512, "num_devices": 2}
    dataset, task = store.lake.write_dataset(pool, "upgrade"), PlacementTask(pool, 2, 2**30)
    versions = []
    for number, (torch_version, ms) in enumerate({"2.12": 2.0, "2.13": 1.5}.items(), start=1):
        samples = [make_sample(task, [n % 2, n // 2 % 2, n // 4, *[1] * 5], ms=ms * (1 + n)) for n in range(6)]
        append_samples(store.lake, samples[number - 1 :], f"upgrade-{number}", 1, dataset)
        measured = MeasuredOn(
            testbed="cluster", hardware="h", versions={"torch": torch_version, "cuda": "13"}, **setting
        )
        tags = {"training": f"upgrade-{number}", registry.MEASURED_ON: measured.model_dump_json()}
        versions.append(version_of(f"models:/m/{number}", **tags))
    said = upgrade_sentence(store, *versions)
    assert "(torch 2.12 to 2.13)" in said
    assert re.search(r"saves \+25\.0 % \(.*\) of the cost of the same 5 placements", said), said
    assert upgrade_sentence(store, versions[0], versions[0]) == ""
    other = replace(versions[1], tags=versions[1].tags | {"training": "none"})
    assert "run --full" in upgrade_sentence(store, versions[0], other)


def test_a_page_interprets_no_html_of_what_it_reports():
    page = html_page("| a | b |\n| --- | --- |\n| 1 | <script> |")
    assert "<td>1</td>" in page
    assert "<script>" not in page
