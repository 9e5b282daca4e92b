"""Two versions of a list of tables that changed: named for what they are, and compared by what differs."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from mlflow import MlflowClient

from storage.lake import catalog
from storage.mlflow_store import reference_series, registry, runs, versions
from storage.mlflow_store.experiment import EXPERIMENT
from storage.run_records import reference_sets
from storage.settings import Settings
from storage.store import Store
from tests.flows.commands import Dreamshard

pytestmark = pytest.mark.flow

RUN = ("run", "--recipe", "smoke", "--testbed", "simulated", "--iterations", "1", "--json", "--mode", "pool")
TOPOLOGY = "simulated rtx2080ti · 2 devices"


def write_tables(path: Path, numbers: Sequence[int]) -> None:
    lines = [f"t{i},{1000 * (i + 1)},{4 * (1 + i % 8)},{1 + i % 7}" for i in numbers]
    path.write_text("\n".join(["name,rows,dim,pooling_factor", *lines]) + "\n")


@pytest.fixture(scope="module")
def settings(shared_dreamshard: Dreamshard, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A home with version 1, version 2 of the same list with three tables more and two fewer, and a run that failed."""
    home = tmp_path_factory.mktemp("versions")
    source = home / "tables.csv"
    for numbers in (range(24), range(2, 27)):
        write_tables(source, numbers)
        done = shared_dreamshard(*RUN, "--source", str(source), home=home)
        assert done.returncode == 0, done.sentence
    done = shared_dreamshard(*RUN, "--source", str(source), "--tables-per-task", "100", home=home)
    assert done.returncode == 1
    (home / "sentence").write_text(done.sentence)
    return Settings.from_environment({"DREAMSHARD_HOME": str(home)})


@pytest.fixture
def tracking(settings: Settings) -> MlflowClient:
    return runs.client(settings)


def test_versions_and_their_runs_are_named_for_what_they_are(settings: Settings, tracking: MlflowClient):
    names = {"1": "v1 tables.csv, from nothing", "2": "v2 tables.csv +3 -2, warm from v1"}
    for version, name in names.items():
        found = registry.find(settings, version)
        assert found.tags["name"] == name
        assert found.description.startswith(f"{name}; ")
        assert tracking.get_run(found.run_id).info.run_name == name


def test_mlflows_comparison_shows_what_differs_and_what_the_versions_are_made_of(
    settings: Settings, tracking: MlflowClient
):
    """The page that compares versions reads the parameters of their runs."""
    first, second = (tracking.get_run(registry.run_of(settings, version)) for version in "12")
    differing = {name for name, value in second.data.params.items() if first.data.params.get(name) != value}
    assert differing >= {"tables", "table_diff", "warm_from", "dataset"}
    wanted = {"source", "hardware", "devices", "memory_gb", "tables_per_task", "mode", "batch_size", "iterations"}
    assert wanted <= first.data.params.keys()
    assert (second.data.params["table_diff"], second.data.params["warm_from"]) == ("+3 -2", "1")
    inputs = {entry.dataset.digest for entry in second.inputs.dataset_inputs}
    tags = registry.version_tags(settings, "2")
    assert {tags["dataset"], tags["reference_set"]} < inputs


def test_figures_of_different_tasks_have_different_names_and_those_of_the_reference_set_the_same(
    settings: Settings, tracking: MlflowClient
):
    first, second = (tracking.get_run(registry.run_of(settings, version)).data.metrics for version in "12")
    on_tasks = [{name for name in metrics if name.endswith("/eval_overall_ms")} for metrics in (first, second)]
    assert [len(names) for names in on_tasks] == [1, 1]
    assert on_tasks[0] != on_tasks[1]
    assert not [name for name in first | second if name.startswith("eval_")]
    assert {version["version"]: "eval_overall_ms" in version for version in versions.versions(settings)} == {
        "1": True,
        "2": True,
    }, "dreamshard's own list says which version each is of"
    assert first[reference_series.COST] > 0
    assert first[reference_series.RULE] == second[reference_series.RULE], "the same placements on the same machine"


def test_one_chart_shows_the_reference_cost_over_versions(settings: Settings, tracking: MlflowClient):
    experiment = tracking.get_experiment_by_name(EXPERIMENT).experiment_id
    (series,) = tracking.search_runs([experiment], "tags.series = 'reference'")
    assert series.info.run_name == f"reference set {TOPOLOGY}"
    history = tracking.get_metric_history(series.info.run_id, reference_series.COST)
    own = [tracking.get_run(registry.run_of(settings, version)).data.metrics[reference_series.COST] for version in "12"]
    assert [(point.step, point.value) for point in history] == list(enumerate(own, start=1))
    rows = catalog.query(
        settings,
        "select model_version, avg(overall_ms) as ms from evaluations "
        "where split = 'reference' and model_version is not null group by 1 order by 1",
    )
    assert [(row["model_version"], pytest.approx(row["ms"])) for row in rows] == list(zip((1, 2), own, strict=True))


def test_the_reference_tables_are_nobodys_newest_data_set_and_stay_while_a_version_needs_them(settings: Settings):
    store = Store(settings)
    (used,) = reference_sets.reference_sets(store, TOPOLOGY)
    assert store.lake.dataset_versions()[-1] == registry.version_tags(settings, "2")["dataset"]
    assert {used.dataset, registry.version_tags(settings, "1")["reference_evaluation"]} <= registry.referenced_keys(
        settings
    )


def test_a_run_that_failed_carries_its_sentence(settings: Settings, tracking: MlflowClient):
    experiment = tracking.get_experiment_by_name(EXPERIMENT).experiment_id
    failed = tracking.search_runs([experiment], "attributes.status = 'FAILED'")
    sentence = (settings.home / "sentence").read_text()
    assert {run.info.run_name for run in failed} == {"retrain tables.csv", "ingest"}
    assert {run.data.tags["error"] for run in failed} == {sentence}


def test_another_reference_set_begins_another_series(settings: Settings, shared_dreamshard: Dreamshard):
    """The last one: it changes the home."""
    write_tables(settings.home / "tables.csv", range(30))
    done = shared_dreamshard(*RUN, "--source", str(settings.home / "tables.csv"), "--new-reference", home=settings.home)
    assert done.returncode == 0, done.sentence
    first, second = reference_sets.reference_sets(Store(settings), TOPOLOGY)
    assert (first.number, second.number) == (1, 2)
    assert registry.version_tags(settings, "3")["reference_set"] == second.key != first.key
