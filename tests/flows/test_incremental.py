"""Training on from the champion when tables change: kept state, kept samples; nothing trained on is ever held out.

The steps without Prefect's server and MLflow's registry, whose versions are a list here.
"""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from dreamshard.costs import library_versions
from dreamshard.recipes import Recipe
from dreamshard.tables import concatenate
from dreamshard.training.config import Algorithm
from dreamshard.workloads import open_workload, statistics
from flows import stages, train
from flows.forms.form import configure
from flows.forms.options import RetrainOptions
from flows.rules import warm_start
from flows.runtime import testbed_pool
from storage.mlflow_store import registry
from storage.mlflow_store.registry import MADE_OF, Version
from storage.run_records import checkpoints, trainings
from storage.run_records.trainings import Training, in_words
from storage.store import open_store
from tests.helpers.lookups import drawn

BEFORE = {f"t{i}": ((1000, 20_000, 300_000)[i % 3], (4, 8, 16, 32)[i % 4], 1 + i % 5) for i in range(40)}
REMOVED, RESIZED, DRIFTED, ADDED = ("t3", "t4"), ("t5", "t6"), ("t7", "t8"), ("n0", "n1", "n2")
AFTER = {name: sizes for name, sizes in BEFORE.items() if name not in REMOVED}
AFTER |= {name: (2 * BEFORE[name][0], *BEFORE[name][1:]) for name in RESIZED}
AFTER |= {name: (*BEFORE[name][:2], 3 * BEFORE[name][2]) for name in DRIFTED}
AFTER |= dict.fromkeys(ADDED, (5000, 16, 3))


class Home:
    """A home in which trainings are run step by step, and the versions that came of them."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch, algorithm: Algorithm = "dreamshard", iterations: int = 3):
        patch.setenv("DREAMSHARD_HOME", str(path))
        patch.setattr(registry, "versions", lambda _: self.versions[::-1])  # newest first
        patch.setattr(registry, "load_placer", self.placer)
        self.path, self.algorithm, self.iterations = path, algorithm, iterations
        self.store, self.versions = open_store(), list[Version]()
        for tables in (BEFORE, AFTER):
            self.register(self.train(self.dataset(tables)))

    def config(self, **other) -> Recipe:
        options = {"recipe": "smoke", "testbed": "simulated", "source": str(self.path / "list.csv")}
        config = configure(RetrainOptions(**options | {"algorithm": self.algorithm} | other))
        training = replace(config.training, iterations=self.iterations, warm_iterations=2, cost_steps=20)
        return replace(config, training=training)

    def dataset(self, tables: dict[str, tuple[int, int, int]]) -> str:
        lines = [",".join(map(str, [name, *sizes])) for name, sizes in tables.items()]
        (self.path / "list.csv").write_text("\n".join(["name,rows,dim,pooling_factor", *lines]) + "\n")
        listed = drawn(open_workload(self.config().workload))
        described = [statistics(*table) for table in listed]
        for (_, lookups), its in zip(listed, described, strict=True):
            self.store.lake.write_table_lookups(lookups, its)
        return self.store.lake.write_dataset(concatenate(described), self.config().workload.source)

    def start(self, *, full: bool = False, **other) -> warm_start.Start:
        """How another training on the tables of the second version would start."""
        config, dataset = self.config(**other), self.versions[1].made_of.dataset
        testbed = testbed_pool.testbed_reference(self.store, config, dataset, 0)
        return warm_start.find_start(self.store, Training(recipe=config, dataset=dataset, testbed=testbed), full=full)

    def train(self, dataset: str) -> str:
        with disable_run_logger(), testbed_pool.shared_testbeds():
            training = stages.prepare.fn(self.store, self.config(), dataset, 0)
            train.start_training.fn(self.store, training)
            for iteration in range(1, trainings.read(self.store, training).config.iterations + 1):
                if not checkpoints.is_complete(self.store, training, iteration):
                    train.measure_placements.fn(self.store, training, iteration)
                    train.fit_cost_network.fn(self.store, training, iteration)
                    train.improve_policy.fn(self.store, training, iteration)
        return training

    def register(self, training: str) -> None:
        last = checkpoints.last_iteration(self.store, training)
        tags = {"training": training, "iteration": str(last), MADE_OF: trainings.read(self.store, training).to_json()}
        uri = f"models:/dreamshard.list.simulated-rtx2080ti-x2/{len(self.versions) + 1}"
        self.versions.append(Version(uri=uri, tags=tags, aliases=() if self.versions else ("champion",)))

    def placer(self, uri: str, _settings: object = None):
        version = next(version for version in self.versions if version.uri == uri)
        return checkpoints.placer(self.store, version.training, version.iteration)

    def begins_with_the_weights_of_the_champion(self) -> bool:
        champion = self.placer(self.versions[0].uri)
        begun = checkpoints.load(self.store, self.versions[1].training, "iteration_00")
        weights = [(getattr(champion, kind), getattr(begun, kind)) for kind in ("cost_network", "policy")]
        return all(
            value.equal(new.state_dict()[name]) for old, new in weights for name, value in old.state_dict().items()
        )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A list was trained on (version 1, the champion), changed, and trained on again (version 2)."""
    with pytest.MonkeyPatch.context() as patch:
        yield Home(tmp_path_factory.mktemp("incremental"), patch)


def test_the_second_training_continues_from_the_first(home: Home):
    one, two = home.versions
    assert one.made_of.warm is None
    assert two.made_of.warm is not None
    assert (two.made_of.warm.version, two.made_of.warm.training) == (one.uri, one.training)
    assert two.made_of.warm.trainings == (one.training,)
    assert home.begins_with_the_weights_of_the_champion()


@pytest.mark.parametrize("algorithm", ["paper", "autoshard"])
def test_a_published_algorithm_continues_from_its_own_champion(tmp_path, monkeypatch, algorithm: Algorithm):
    home = Home(tmp_path, monkeypatch, algorithm, iterations=1)
    effort = trainings.effort_sentence(home.store, home.versions[1].training)
    assert effort.startswith(f"warm from {in_words(home.versions[0].uri)}: 5 cost samples re-used, 0 of ")
    assert home.begins_with_the_weights_of_the_champion()


def test_no_table_that_was_trained_on_is_ever_held_out(home: Home):
    before, after = (home.store.lake.read_table_split(version.made_of.tasks) for version in home.versions)
    assert before.train <= after.train, "also tables that are gone, in case they come back"
    assert before.test <= after.test
    assert not after.train & after.test
    assert after.train | after.test == {*BEFORE, *ADDED}
    origin = home.versions[1].made_of
    for split, allowed in (("train", after.train), ("test", after.test)):
        drawn = home.store.lake.read_tasks(origin.dataset, split, origin.tasks)
        assert {name for task in drawn for name in task.tables.names} <= allowed - set(REMOVED)


def test_earlier_samples_are_fitted_with_their_own_tables(home: Home):
    samples = trainings.earlier_samples(home.store, home.versions[1].made_of)
    measured = home.store.lake.read_cost_samples(run_key=home.versions[0].training)
    assert len(samples) == len(measured) >= 13, "fifteen draws, of which a few may be of one placement"
    rows = {name: int(n) for s in samples for name, n in zip(s.task.tables.names, s.task.tables.rows, strict=True)}
    assert set(rows) <= home.store.lake.read_table_split(home.versions[0].made_of.tasks).train
    assert all(rows[name] == BEFORE[name][0] for name in rows)


def test_a_full_training_keeps_only_the_table_split(home: Home):
    begun = home.start(full=True)
    assert (begun.warm, begun.split_of) == (None, home.versions[0].made_of.tasks)
    assert "a full training was requested" in begun.why


@pytest.mark.parametrize("other", [{"devices": 4}, {"testbed": "simulated:v100"}])
def test_other_tasks_or_hardware_begin_with_nothing(home: Home, other: dict):
    begun = home.start(**other)
    assert (begun.warm, begun.split_of) == (None, None)
    assert "no version was trained on this testbed" in begun.why


def test_a_new_model_continues_from_another_one_on_the_same_hardware(home: Home):
    begun = home.start(model="ads")
    assert begun.warm is not None
    assert begun.warm.version == home.versions[0].uri
    assert "of another model on the same hardware, with cost samples of its 1 trainings" in begun.why


def test_a_name_that_is_of_other_tables_has_to_be_given(home: Home):
    (home.path / "other").mkdir()
    elsewhere = str(shutil.copy(home.path / "list.csv", home.path / "other"))
    for given in ({"source": elsewhere}, {"model": "list", "source": "meta-dlrm-2021"}):  # the recipe's own
        with pytest.raises(ValueError, match="--model list"):
            home.start(**given)
    assert home.start(source=elsewhere, model="list").warm == home.start().warm


def test_an_upgraded_library_measures_again(home: Home, monkeypatch: pytest.MonkeyPatch):
    dataset = home.versions[0].made_of.dataset
    with disable_run_logger(), testbed_pool.shared_testbeds():
        before = stages.prepare.fn(home.store, home.config(), dataset, 0, full=True)
        assert stages.prepare.fn(home.store, home.config(), dataset, 0, full=True) == before
        monkeypatch.setattr(stages, "library_versions", lambda: {"torch": "9.9"})
        assert stages.prepare.fn(home.store, home.config(), dataset, 0, full=True) != before
    (home.path / "driver").write_text("570.86\n")
    assert library_versions(home.path / "driver")["driver"] == "570.86"
    assert "driver" not in library_versions(home.path / "absent")


def test_a_lost_split_is_an_error_except_in_a_full_training(home: Home):
    path = home.store.lake_root / "halves" / f"{home.versions[0].made_of.tasks}.json"
    hidden = path.rename(path.with_suffix(".hidden"))
    try:
        with pytest.raises(ValueError):
            home.start()
        begun = home.start(full=True)
        assert (begun.warm, begun.split_of) == (None, None)
    finally:
        hidden.rename(path)
