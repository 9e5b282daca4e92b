import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import fsspec
import pytest

from storage.run_records.trainings import in_words
from tests.flows.commands import Done, Dreamshard, failed_with, runner

STORE = "s3://team/flows/store"
TABLES = Path(__file__).parents[2] / "dreamshard/workloads/data/mlperf-dlrm-dcnv2.csv"


@pytest.fixture(scope="module")
def dreamshard_on_s3(s3_environment: Mapping[str, str]) -> Iterator[Dreamshard]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**s3_environment, "DREAMSHARD_STORE": STORE}.items():
            patch.setenv(name, value)
        yield runner(patch)


STAGE = ("--recipe", "smoke", "--testbed", "simulated:a100")
BATCH = ("--batch-size", "8192")  # with 512 samples no placement is better than another


@pytest.fixture(scope="module")
def staged(dreamshard_on_s3: Dreamshard, mlflow_home: Callable[[], Path]) -> dict[str, str]:
    """The home and what each stage printed; a stage without the one before it is refused on the way."""
    said = {"home": str(mlflow_home())}

    def stage(name: str, *options: str) -> Done:
        return dreamshard_on_s3(name, *(options or STAGE), home=Path(said["home"]))

    def passed(name: str, *options: str) -> None:
        done = stage(name, *options)
        assert done.returncode == 0, done.sentence
        said[name] = done.stdout

    failed_with(stage("train"), "nothing has been ingested", "dreamshard ingest")
    passed("ingest", "meta-dlrm-2021", "--recipe", "smoke", *BATCH)
    failed_with(stage("evaluate"), "no training", "dreamshard train")
    passed("profile")
    failed_with(stage("register"), "finished an iteration", "dreamshard train")
    passed("train")
    failed_with(stage("register"), "not been evaluated", "dreamshard evaluate")
    passed("evaluate")
    passed("register")
    return said


@pytest.fixture(scope="module")
def outcome(dreamshard_on_s3: Dreamshard, staged: dict[str, str]) -> dict[str, str]:
    """What `run` says of itself when the stages have done everything, and the home it ran in."""
    done = dreamshard_on_s3("run", *STAGE, *BATCH, "--json", home=Path(staged["home"]))
    assert done.returncode == 0, done.sentence
    return json.loads(done.stdout) | {"home": staged["home"]}


def test_each_stage_ends_with_the_command_that_goes_on_from_it(staged: dict[str, str]):
    following = {name: said.split()[-1] for name, said in staged.items() if name not in ("home", "register")}
    assert following == {"ingest": "train", "profile": "train", "train": "evaluate", "evaluate": "register"}


def test_a_run_after_the_stages_measures_nothing_again(dreamshard_on_s3, outcome):
    assert outcome["version"].endswith("/1")
    query = "select iteration, count(*) as n from cost_samples where iteration > 0 group by 1 order by 1"
    done = dreamshard_on_s3("sql", query, "--json", home=Path(outcome["home"]))
    assert json.loads(done.stdout) == [{"iteration": 1, "n": 5}, {"iteration": 2, "n": 5}]


def test_the_store_has_the_whole_chain_and_the_home_none(outcome):
    files = fsspec.filesystem("s3", use_listings_cache=False)
    kept = {path.removeprefix("team/flows/store/") for path in files.find("team/flows/store")}
    folders = {"lake", "checkpoints", "evaluations", "mlartifacts", "registry.json"}
    assert {path.partition("/")[0] for path in kept} == folders
    assert f"checkpoints/{outcome['training']}/iteration_02.zip" in kept
    assert f"evaluations/{outcome['evaluation']}.json" in kept
    assert any(path.endswith("artifacts/placer/weights.safetensors") for path in kept), "of the registered version"
    assert any(path.endswith(".html") for path in kept), "MLflow's pages"
    assert not [path for path in kept if path.startswith("lake/sample_buffer") or path.endswith(".tmp")]
    assert outcome["where"]["evaluation"].startswith(f"{STORE}/evaluations/")
    local = {path.relative_to(outcome["home"]).parts[0] for path in Path(outcome["home"]).rglob("*") if path.is_file()}
    assert not local & folders


def test_the_champion_places_from_there(dreamshard_on_s3, outcome):
    options = ("--devices", "8", "--memory-gb", "40", "--format", "json")
    for words in (("promote", "1"), ("place", str(TABLES), *options)):  # so short a training may leave a challenger
        done = dreamshard_on_s3(*words, home=Path(outcome["home"]))
        assert done.returncode == 0, done.sentence
    assert json.loads(done.stdout)["placer"] == in_words(outcome["version"])


def test_a_store_unknown_to_mlflow_needs_artifacts_elsewhere(dreamshard_on_s3, tmp_path, monkeypatch):
    monkeypatch.setenv("DREAMSHARD_STORE", "memory://team/x")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    done = dreamshard_on_s3("ingest", "meta-dlrm-2021", "--recipe", "smoke", home=tmp_path)
    failed_with(done, "memory://", "DREAMSHARD_ARTIFACTS")
