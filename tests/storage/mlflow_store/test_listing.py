"""Reading all versions at once: from MLflow's database as its client has them, and without importing it."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.server import app as mlflow_app
from mlflow.server import handlers
from mlflow.server.constants import ARTIFACT_ROOT_ENV_VAR, BACKEND_STORE_URI_ENV_VAR, REGISTRY_STORE_URI_ENV_VAR
from werkzeug.serving import make_server

from storage.mlflow_store import listing, registration, runs, versions
from storage.mlflow_store.alias_changes import set_alias
from storage.mlflow_store.listing import Listing, VersionEntry
from storage.mlflow_store.server_listing import from_server
from storage.settings import Settings

TAGS = {"name": "v1 tables.csv", "tables_per_task": "8", "devices": "2", "seed": "0"}


@pytest.fixture
def registered(mlflow_settings: Settings, placer_folder: Path) -> Settings:
    """Versions 1 (the champion), 2 (deleted) and 3 (whose measurement failed), and version 1 of another algorithm."""
    for algorithm, cost in (("dreamshard", 3.0), ("dreamshard", 2.0), ("dreamshard", 4.0), ("paper", 5.0)):
        settings = mlflow_settings.of(algorithm)
        with runs.chain(settings, "retrain") as run:
            registration.register_placer(settings, placer_folder, run, metrics={"eval_overall_ms": cost}, tags=TAGS)
    set_alias(mlflow_settings.of("paper"), "paper:1", "champion", "the first as published")
    runs.client(mlflow_settings).delete_model_version(mlflow_settings.registered_model, "2")
    set_alias(mlflow_settings, "1", "champion", "the first")
    return mlflow_settings


def test_the_database_holds_what_mlflows_client_returns(registered: Settings, monkeypatch: pytest.MonkeyPatch):
    direct = listing.read(registered)
    costs = [(entry.version, entry.metrics["eval_overall_ms"]) for entry in direct.versions]
    assert costs == [("paper:1", 5.0), ("3", 4.0), ("1", 3.0)]
    assert direct.aliases == {"champion": "1", "paper:champion": "paper:1"}
    assert direct.of("dreamshard").aliases == {"champion": "1"}
    monkeypatch.setattr(listing, "LOCAL", "as a server: ")
    assert listing.read(registered) == direct
    with pytest.raises(ValueError, match=r"no version '2' of dreamshard .* version 3, version 1 \(champion\)"):
        direct.find("2", "here")
    with pytest.raises(ValueError, match=r"no version 'paper:2' of dreamshard-paper .* version paper:1 \(champion\)"):
        direct.find("paper:2", "here")
    with pytest.raises(ValueError, match=r"no champion yet of autoshard .* `dreamshard run --algorithm autoshard`"):
        direct.find("autoshard", "here")
    assert versions.version(registered, "champion")["tables_per_task"] == "8"
    shown = versions.version(registered, "paper")
    assert (shown["version"], shown["aliases"], shown["algorithm"]) == ("paper:1", "champion", "paper")
    without = replace(direct, aliases={"challenger": "3"})
    with pytest.raises(ValueError, match=r"version 3 \(challenger\), version 1; .*--placer 3.*`dreamshard promote 3`"):
        without.find("champion", "here")


def entry(version: str, created_ms: int) -> VersionEntry:
    return VersionEntry(version=version, run=None, created_ms=created_ms, description="", tags={}, metrics={})


def test_versions_of_an_algorithm_stay_in_order_when_the_clock_was_set_back():
    later = Listing(aliases={}, versions=(entry("3", 900), entry("2", 100), entry("1", 800)))
    merged = Listing.merged({"dreamshard": later, "paper": Listing(aliases={}, versions=(entry("paper:1", 850),))})
    assert [each.version for each in merged.versions] == ["3", "paper:1", "2", "1"]


def test_before_the_first_version_there_are_none_and_no_database_is_made(tmp_path: Path):
    settings = Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path)})
    assert listing.read(settings).versions == ()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="no champion yet"):
        versions.version(replace(settings), "champion")


def test_models_lists_versions_without_importing_mlflow_or_torch(registered: Settings):
    program = (
        "import sys\nfrom flows.cli.app import main\n"
        f"for words in (['models'], ['models', '1']):\n"
        f"    try:\n        main([*words, '--home', {str(registered.home)!r}])\n"
        "    except SystemExit as end:\n        assert not end.code, end.code\n"
        "print('imported:', *[name for name in ('mlflow', 'torch', 'pandas', 'prefect') if name in sys.modules])"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].strip() == "imported:"
    for word in ("v1 tables.csv", "tables_per_task", "champion", "the first", "eval_overall_ms"):
        assert word in done.stdout


@pytest.fixture
def served(registered: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of MLflow's REST interface to the registry, answered by a thread of this process."""
    for name in (BACKEND_STORE_URI_ENV_VAR, REGISTRY_STORE_URI_ENV_VAR):
        monkeypatch.setenv(name, registered.tracking_uri)
    monkeypatch.setenv(ARTIFACT_ROOT_ENV_VAR, registered.artifact_root)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "")  # which the server sets; undone with the rest
    monkeypatch.delenv("MLFLOW_REGISTRY_URI")
    for store in ("_tracking_store", "_model_registry_store"):
        monkeypatch.setattr(handlers, store, None)
    web = make_server("127.0.0.1", 0, mlflow_app)
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{web.server_port}"
    web.shutdown()
    thread.join()


def test_a_server_answers_what_its_database_holds(registered: Settings, served: str):
    assert from_server(served, {}) == listing.read(registered)
    assert from_server(f"{served}/", {"MLFLOW_TRACKING_USERNAME": "ann", "MLFLOW_TRACKING_PASSWORD": "x"}) is not None
    assert from_server(served, {"MLFLOW_TRACKING_AUTH": "own"}) is None, "MLflow's client knows how to log in"
    assert from_server(f"{served}/elsewhere", {}) is None


def test_a_server_that_is_away_is_left_to_mlflows_client():
    assert from_server("http://127.0.0.1:1", {}) is None
