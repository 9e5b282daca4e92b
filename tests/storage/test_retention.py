import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from dreamshard.tables import ModelTable, concatenate
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainedPlacer
from dreamshard.workloads import Lookups, statistics
from storage import retention
from storage.filesystem import write_json
from storage.lake import catalog
from storage.lake.lake import EVALUATION, Lake
from storage.mlflow_store import registry, runs
from storage.run_records import trainings
from storage.run_records.trainings import Warm
from storage.settings import Settings
from storage.store import Store, open_store
from tests.helpers.lake import append_samples, query
from tests.helpers.samples import four_tables, make_evaluation, make_sample
from tests.helpers.versions import training_of

MONTHS_S = 200 * 24 * 3600.0
ITERATIONS = 3


def key(name: str) -> str:
    """A key as the flows make them."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def ingest(lake: Lake, name: str) -> str:
    """A dataset of two tables with their lookups; `shared` is in all of them."""
    described = []
    for table, row in ((name, len(name)), ("shared", 1)):
        looked_up = Lookups(torch.tensor([row, row, 0], dtype=torch.int32), torch.tensor([0, 2, 3]))
        described.append(statistics(ModelTable(table, rows=100, dim=8), looked_up))
        lake.write_table_lookups(looked_up, described[-1])
    tables = concatenate(described)
    return lake.write_dataset(tables, name)


def train(store: Store, name: str, predecessor: str = "") -> str:
    """All that a training and its evaluation leave behind; returns the dataset."""
    lake, training, evaluation = store.lake, key(name), key(f"evaluation of {name}")
    version = ingest(lake, name)
    task = PlacementTask(lake.read_dataset(version), 2, 10**6, name="train-000")
    lake.write_tasks([task], version, "train", key(f"tasks of {name}"))
    for iteration in range(1, ITERATIONS + 1):
        for end in ("json", "proposals.json", "zip"):
            write_json(store.checkpoints / training / f"iteration_{iteration:02}.{end}", [])
        append_samples(lake, [make_sample(task, [0, 1], ms=float(iteration))], training, iteration, version)
    run = key(predecessor)
    warm = Warm(version="1", training=run, iteration=3, trainings=(run,)) if predecessor else None
    trainings.write(store, training, training_of(warm=warm))
    append_samples(lake, [make_sample(task, [1, 0])], evaluation, EVALUATION, version)
    where = {"dataset_version": version, "testbed": "t", "hardware": "h"}
    lake.write_evaluation([make_evaluation(task, "dreamshard", 1.5)], {}, evaluation, **where)
    write_json(store.evaluations / f"{evaluation}.json", {"key": evaluation, "training": training})
    write_json(store.evaluations / "newest" / f"{training}.json", {"key": evaluation})
    return version


@pytest.fixture
def store(mlflow_settings: Settings, placer: TrainedPlacer) -> Store:
    """Six trainings; the third is version 1, which went on from the second."""
    for name in ("first", "second", "third", "fourth", "fifth", "last"):
        version = train(mlflow_settings, name, "second" if name == "third" else "")
        if name == "third":
            tags = {"training": key(name), "evaluation": key(f"evaluation of {name}"), "dataset": version}
            with runs.open_run(mlflow_settings, "retrain") as run:
                runs.register_placer(mlflow_settings, placer, run, training_of(), tags=tags, pool=four_tables())
    registry.write_versions(mlflow_settings)
    return mlflow_settings


def shared_files(store: Store) -> Iterator[Path]:
    for root in (store.lake.root, store.checkpoints, store.evaluations):
        assert isinstance(root, Path)
        yield from (path for path in sorted(root.rglob("*")) if path.is_file())


def age(paths: Sequence[Path]) -> None:
    then = time.time() - MONTHS_S
    for path in paths:
        os.utime(path, (then, then))


def facts(store: Store, name: str) -> tuple[list, ...]:
    """What is known of a training, its evaluation and its tables."""
    lake, training, evaluation = store.lake, key(name), key(f"evaluation of {name}")
    samples = [sample.overall_ms for run in (training, evaluation) for sample in lake.read_cost_samples(run)]
    rows = query(store, f"select placer, overall_ms from evaluations where run_key = '{evaluation}'")
    states = sorted(path.name for path in (store.checkpoints / training).glob("*"))
    reports = [(store.evaluations / path).exists() for path in (f"{evaluation}.json", f"newest/{training}.json")]
    sql = f"select distinct dataset_version as version from tables where name = '{name}'"
    (version,) = (row["version"] for row in query(store, sql))
    source = lake.lookup_source(version)
    looked_up = [source(table).indices.tolist() for table in lake.read_dataset(version).names]
    return samples, rows, states, reports, looked_up


def removable(store: Store) -> list[retention.StoredFile]:
    """Files that may go, as of 90 days ago."""
    return retention.find_removable(store, datetime.now(UTC) - timedelta(days=90))


def test_what_is_old_goes_as_planned_and_what_a_version_needs_stays(store: Store):
    comparisons = [store.evaluations / f"{key(name)}.json" for name in ("named", "forgotten")]
    for path in comparisons:
        write_json(path, {"key": path.stem})
    registry.tag(store, "1", {"comparison": key("named")})
    age(before := list(shared_files(store)))
    removals = removable(store)
    planned = {row["kind"]: row for row in retention.prune(store, older_than_days=90, keep_versions=20, delete=False)}
    assert list(shared_files(store)) == before, "a plan removes nothing"
    assert planned["checkpoints"]["files"] == 4 * (3 * ITERATIONS + 1)  # first, fourth, fifth and last
    assert planned["lookups"]["files"] == 3  # of first, fourth and fifth; `shared` is a kept dataset's too
    assert planned["all"]["bytes"] == sum(removal.info.path.stat().st_size for removal in removals)
    before = {name: facts(store, name) for name in ("second", "third", "last")}
    retention.remove_files(removals)
    assert facts(store, "third") == before["third"], "the version"
    assert facts(store, "second")[0][:ITERATIONS] == before["second"][0][:ITERATIONS], "what the version went on from"
    assert facts(store, "last")[4] == before["last"][4], "the tables ingested last"
    assert registry.load_placer("1", store).name == "dreamshard"
    assert {path.name for path in store.checkpoints.iterdir()} == {key("second"), key("third")}
    assert store.lake.read_cost_samples(key("first")) == []
    assert [path.exists() for path in comparisons] == [True, False]
    with pytest.raises(ValueError):
        facts(store, "first")
    assert removable(store) == []
    for view in catalog.VIEWS:
        query(store, f"select * from {view}")


def test_a_training_that_runs_keeps_all_of_it_and_its_tables(store: Store):
    age(list(shared_files(store)))
    (store.checkpoints / key("fourth") / "measured.json").write_text("{}")
    before = facts(store, "fourth")
    retention.remove_files(removable(store))
    after = facts(store, "fourth")
    assert (after[0][:ITERATIONS], after[2], after[4]) == (before[0][:ITERATIONS], before[2], before[4])


def test_a_store_with_another_registry_is_left_alone(store: Store, tmp_path: Path):
    age(list(shared_files(store)))
    shared = str(store.home)
    visitor = Store.from_environment({"DREAMSHARD_HOME": str(tmp_path / "visitor"), "DREAMSHARD_STORE": shared})
    with pytest.raises(ValueError):
        removable(open_store(visitor))
    member = replace(visitor, tracking_uri=store.tracking_uri)
    assert {file.run for file in removable(member)} == {file.run for file in removable(store)}
    (store.home / "mlflow.db").rename(store.home / "moved.db")
    with pytest.raises(ValueError, match="is not that of the store"):
        retention.prune(store, older_than_days=1, keep_versions=1, delete=True)
    assert [*store.checkpoints.iterdir()], "everything is there"


def test_versions_beyond_the_newest_go_with_their_files(store: Store, placer: TrainedPlacer):
    for _ in range(4):
        with runs.open_run(store, "retrain") as run:
            runs.register_placer(store, placer, run, training_of(), tags={"training": key("last")})
    registry.set_alias(store, "2", "champion", "the first")
    registry.tag(store, "3", {registry.PINNED: "for the paper"})
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    old = [removable_version.number for removable_version in retention.old_versions(store, tomorrow, 1)]
    assert old == [4, 1], "5 is the newest, 2 the champion, 3 pinned"
    assert retention.old_versions(store, tomorrow - timedelta(days=2), 1) == [], "changed lately"
    for version in retention.old_versions(store, tomorrow, 1):
        registry.remove(store, version)
    assert {left.number for left in registry.versions(store)} == {2, 3, 5}
    assert key("third") not in registry.referenced_keys(registry.versions(store))
