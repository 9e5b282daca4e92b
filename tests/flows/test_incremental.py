"""Training on from the champion when tables change: what is kept and measured; nothing trained on is ever held out.

The steps without Prefect's server and MLflow's registry, whose versions are a list here; both are real in `test_servers.py`.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from dreamshard.recipes import Recipe
from dreamshard.tables import concatenate
from dreamshard.training.config import Algorithm
from dreamshard.workloads import open_workload, statistics
from flows import profile, stages, train
from flows.drawing import draw_tasks
from flows.forms.configuration import configure
from flows.forms.options import RetrainOptions
from flows.rules import warm_start
from flows.runtime import testbed_pool
from storage.mlflow_store import registry
from storage.mlflow_store.registry import MADE_OF, Version
from storage.run_records import checkpoints, trainings
from storage.run_records.trainings import Training
from storage.store import open_store
from storage.version_names import in_words

BEFORE = {f"t{i}": ((1000, 20_000, 300_000)[i % 3], (4, 8, 16, 32)[i % 4], 1 + i % 5) for i in range(40)}
REMOVED, RESIZED, DRIFTED, ADDED = ("t3", "t4"), ("t5", "t6"), ("t7", "t8"), ("n0", "n1", "n2")


def changed() -> dict[str, tuple[int, int, int]]:
    tables = {name: sizes for name, sizes in BEFORE.items() if name not in REMOVED}
    tables |= {name: (2 * BEFORE[name][0], *BEFORE[name][1:]) for name in RESIZED}
    tables |= {name: (*BEFORE[name][:2], 3 * BEFORE[name][2]) for name in DRIFTED}
    return tables | dict.fromkeys(ADDED, (5000, 16, 3))


class Home:
    """A home in which trainings are run step by step, and the versions that came of them."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch, algorithm: Algorithm = "dreamshard"):
        self.path, self.algorithm, self.iterations = path, algorithm, 3
        self.versions: list[Version] = []
        patch.setenv("DREAMSHARD_HOME", str(path))
        patch.setattr(registry, "versions", lambda _: self.versions)
        patch.setattr(registry, "load_placer", self.placer)

    def version(self, number: int) -> str:
        return f"models:/{self.algorithm}-simulated-rtx2080ti-2/{number}"

    def config(self, **other) -> Recipe:
        config = configure(
            RetrainOptions(
                **{"recipe": "smoke", "testbed": "simulated", "source": str(self.path / "list.csv")}
                | {"algorithm": self.algorithm}
                | other
            )
        )
        return replace(
            config, training=replace(config.training, iterations=self.iterations, warm_iterations=2, cost_steps=20)
        )

    def dataset(self, tables: dict[str, tuple[int, int, int]]) -> str:
        lines = [",".join(map(str, [name, *sizes])) for name, sizes in tables.items()]
        (self.path / "list.csv").write_text("\n".join(["name,rows,dim,pooling_factor", *lines]) + "\n")
        found = list(open_workload(self.config().workload).tables())
        described = [statistics(table) for table in found]
        for table, its in zip(found, described, strict=True):
            open_store().lake.write_table_lookups(table, its)
        return open_store().lake.write_dataset(concatenate(described), self.config().workload.source)

    def start(self, dataset: str, *, full: bool = False, **other) -> warm_start.Start:
        config = self.config(**other)
        store = open_store().of(config.training.algorithm)
        testbed = testbed_pool.testbed_reference(store, config, dataset, 0)
        return warm_start.find_start(store, Training(recipe=config, dataset=dataset, testbed=testbed), full=full)

    def train(self, dataset: str) -> str:
        store = open_store()
        with disable_run_logger(), testbed_pool.shared_testbeds(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(stages, "draw_tasks", draw_tasks.fn)
            training = stages.prepare.fn(store, self.config(), dataset, 0)
            profile.start_training.fn(store, training)
            for iteration in range(1, trainings.read(store, training).config.iterations + 1):
                if not checkpoints.is_complete(store, training, iteration):
                    profile.measure_placements.fn(store, training, iteration)
                    train.fit_cost_network.fn(store, training, iteration)
                    train.improve_policy.fn(store, training, iteration)
        return training

    def register(self, training: str) -> None:
        last = checkpoints.last_iteration(open_store(), training)
        made_of = trainings.read(open_store(), training).to_json()
        number, aliases = len(self.versions) + 1, () if self.versions else ("champion",)
        tags = {"training": training, "iteration": str(last), MADE_OF: made_of}
        self.versions.insert(0, Version(uri=self.version(number), tags=tags, aliases=aliases))  # newest first

    def of(self, number: int) -> Version:
        return self.versions[-number]

    def placer(self, uri: str, _settings: object = None):
        version = next(version for version in self.versions if version.uri == uri)
        return checkpoints.placer(open_store(), version.training, version.iteration, None)

    def table_split(self, number: int):
        return open_store().lake.read_table_split(self.of(number).made_of.tasks)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A list was trained on (version 1, the champion), changed, and trained on again (version 2)."""
    with pytest.MonkeyPatch.context() as patch:
        found = Home(tmp_path_factory.mktemp("incremental"), patch)
        for tables in (BEFORE, changed()):
            found.register(found.train(found.dataset(tables)))
        yield found


def test_the_second_training_goes_on_from_the_first(home: Home):
    first, second = home.of(1).made_of, home.of(2).made_of
    assert first.warm is None
    assert second.warm is not None
    assert (second.warm.version, second.warm.training) == (home.version(1), home.of(1).training)
    assert second.warm.trainings == (home.of(1).training,)
    assert second.dataset != first.dataset
    warm = checkpoints.load(open_store(), home.of(2).training, "iteration_00")
    champion = home.placer(home.version(1))
    assert warm.warm
    for name, value in champion.cost_network.state_dict().items():
        assert value.equal(warm.cost_network.state_dict()[name]), name


@pytest.mark.parametrize("algorithm", ["paper", "autoshard"])
def test_a_published_algorithm_goes_on_from_its_own_champion_and_no_other_from_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm
):
    own = Home(tmp_path, monkeypatch, algorithm)
    own.iterations = 1
    for tables in (BEFORE, changed()):
        own.register(own.train(own.dataset(tables)))
    one = own.version(1)
    effort = trainings.effort_sentence(open_store(), own.of(2).training)
    assert effort.startswith(f"warm from {in_words(one)}: 5 cost samples re-used, 0 of ")
    champion, warm = own.placer(one), checkpoints.load(open_store(), own.of(2).training, "iteration_00")
    for kind in ("cost_network", "policy"):
        kept = getattr(warm, kind).state_dict()
        assert all(value.equal(kept[name]) for name, value in getattr(champion, kind).state_dict().items())


def test_no_table_that_was_trained_on_is_ever_held_out_and_tables_stay_on_their_side_of_the_split(home: Home):
    before, after = home.table_split(1), home.table_split(2)
    assert before.train <= after.train, "those that are gone too, in case they come back"
    assert before.test <= after.test
    assert not after.train & after.test
    assert after.train | after.test == {*BEFORE, *ADDED}
    origin = home.of(2).made_of
    for split, allowed in (("train", after.train), ("test", after.test)):
        drawn = {
            name
            for task in open_store().lake.read_tasks(origin.dataset, split, origin.tasks)
            for name in task.tables.names
        }
        assert drawn <= allowed - set(REMOVED)


def test_what_was_measured_before_is_fitted_as_well_with_the_tables_as_they_were(home: Home):
    samples = trainings.earlier_samples(open_store(), home.of(2).training)
    measured = open_store().lake.read_cost_samples(run_key=home.of(1).training)
    assert len(samples) == len(measured) >= 13, "fifteen draws, of which a few may be of one placement"
    rows = {name: int(n) for s in samples for name, n in zip(s.task.tables.names, s.task.tables.rows, strict=True)}
    assert set(rows) <= home.table_split(1).train
    assert all(rows[name] == BEFORE[name][0] for name in rows)


def test_a_warm_training_that_was_killed_ends_with_the_same_bits_and_measures_nothing_again(home: Home):
    dataset, training = home.of(2).made_of.dataset, home.of(2).training
    whole = checkpoints.load(open_store(), training, "iteration_02")
    (checkpoints.folder(open_store(), training) / "iteration_02.zip").unlink()
    assert checkpoints.last_iteration(open_store(), training) == 1
    assert home.train(dataset) == training, "the same tables are the same training, warm as it was"
    again = checkpoints.load(open_store(), training, "iteration_02")
    for kind in ("cost_network", "policy"):
        before, after = (getattr(state, kind).state_dict() for state in (whole, again))
        assert all(value.equal(after[name]) for name, value in before.items())
    assert again.generator.get_state().equal(whole.generator.get_state())
    assert len(open_store().lake.read_cost_samples(run_key=training)) == 10


def test_a_full_training_begins_with_nothing_but_keeps_the_table_split(home: Home):
    begun = home.start(home.of(2).made_of.dataset, full=True)
    assert begun.warm is None
    assert begun.split_of == home.of(1).made_of.tasks
    assert "a full training was requested" in begun.why


@pytest.mark.parametrize("other", [{"devices": 4}, {"tables_per_task": 10}, {"testbed": "simulated:v100"}])
def test_other_tasks_or_hardware_begin_with_nothing(home: Home, other: dict):
    begun = home.start(home.of(2).made_of.dataset, **other)
    assert (begun.warm, begun.split_of) == (None, None)
    assert "no version was trained on this testbed" in begun.why


def test_a_lost_table_split_is_an_error_and_a_full_training_draws_another(home: Home):
    split, dataset = home.of(1).made_of.tasks, home.of(2).made_of.dataset
    path = open_store().settings.lake_root / "halves" / f"{split}.json"
    hidden = path.rename(path.with_suffix(".hidden"))
    try:
        with pytest.raises(ValueError, match=r"table split of .* is lost"):
            home.start(dataset)
        begun = home.start(dataset, full=True)
        assert (begun.warm, begun.split_of) == (None, None)
    finally:
        hidden.rename(path)
