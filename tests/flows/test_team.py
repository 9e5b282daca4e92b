"""A team: both servers on PostgreSQL, two workers with homes of their own, retrainings at once on what they share."""

import fcntl
import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import unquote

import pytest
from mlflow import MlflowClient

from tests.flows.postgres import INSTALLED, postgres
from tests.flows.team_up import Team

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not INSTALLED, reason="needs PostgreSQL's server (Debian's package postgresql)"),
]

DEPLOY = Path(__file__).parents[2] / "deploy"
RUNS = {"alpha": (0,), "beta": (1,)}
"""Seeds by worker, all at once."""


@pytest.fixture(scope="module")
def team(tmp_path_factory, s3_environment):
    with ExitStack() as ending:
        database = ending.enter_context(postgres(DEPLOY / "databases.sql"))
        yield Team(tmp_path_factory.mktemp("team"), database, s3_environment, ending, RUNS)


@pytest.fixture(scope="module")
def finished(team):
    """Flow runs by worker and seed; they ran at once, and all of them completed."""
    runs, states = team.retrained([(name, seed) for name, seeds in RUNS.items() for seed in seeds])
    spans = [(run["start_time"], run["end_time"]) for run in states.values()]
    assert max(start for start, _ in spans) < min(end for _, end in spans), "they did not run at once"
    return runs


def test_of_retrainings_at_once_each_training_is_one_version_and_at_most_one_is_champion(team, finished):
    registry = MlflowClient(team.mlflow, team.mlflow)
    (model,) = registry.search_registered_models("name LIKE 'dreamshard-%'")
    versions = registry.search_model_versions(f"name='{model.name}'")
    assert len(versions) == 2, "seeds 0 and 1"
    assert len({version.tags["training"] for version in versions}) == 2
    runs = {registry.get_run(version.run_id).data.params["seed"] for version in versions}
    assert runs == {"0", "1"}
    assert "previous" not in model.aliases, "nobody took the champion's place"
    assert all(version.tags["decided_by"] == "evaluation" for version in versions)
    for version in versions:
        assert registry.get_run(version.run_id).info.artifact_uri.startswith("mlflow-artifacts:"), (
            "not through the server"
        )


def test_every_cost_sample_is_in_the_lake_once_and_nothing_is_left_behind(team, finished, monkeypatch):
    from storage.lake import catalog
    from storage.settings import Settings

    for name, value in team.store.items():
        monkeypatch.setenv(name, value)
    settings = Settings.from_environment(os.environ | {"DREAMSHARD_HOME": str(team.folder / "alpha")})
    count = "select count(*) as rows, count(distinct (sample_id, device)) as once from device_costs"
    (found,) = catalog.query(settings, count)
    assert found["rows"] == found["once"] > 0
    evaluated = "select task, placer, count(*) as rows from evaluations group by run_key, task, placer"
    assert {row["rows"] for row in catalog.query(settings, evaluated)} == {1}
    left = [
        str(path)
        for path in settings.store_root.rglob("*")
        if path.name.endswith(".tmp") or "/sample_buffer/" in str(path)
    ]
    assert left == []
    assert list(team.folder.rglob("*.tmp")) == []


def test_no_lock_and_no_slot_is_held_afterwards(team, finished):
    locks = list(team.folder.rglob("locks/*.lock"))
    assert {path.parts[-3] for path in locks} == set(RUNS)
    for path in locks:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    slots = team.limits()
    assert "dreamshard-registry" in slots
    assert set(slots.values()) == {0}


def on(database, *command, **more):
    """What a command of `deploy/` or of docs/team.md does to this PostgreSQL server."""
    login, _, address = database.rpartition("@")
    user, _, password = login.partition(":")
    host, _, port = address.partition(":")
    server = {"PGUSER": user, "PGPASSWORD": unquote(password), "PGHOST": host, "PGPORT": port, "IN": "env"}
    programs = os.pathsep.join([str(INSTALLED[-1].parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **server, "PATH": programs, **more}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def upgrades(database):
    """The commands of docs/team.md that upgrade the databases, and their settings."""
    page = (DEPLOY.parent / "docs" / "team.md").read_text()
    commands = re.findall(r"^docker compose run --rm --no-deps (?:mlflow|prefect) (.*)$", page, flags=re.MULTILINE)
    assert len(commands) == 2
    addresses = {
        "MLFLOW_BACKEND_STORE_URI": f"postgresql://{database}/mlflow",
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://{database}/prefect",
    }
    return [shlex.split(command) for command in commands], addresses


def seed_in_use(team) -> int:
    """Of the version that another retraining on the same tables repeats: the champion, else the newest."""
    registry = MlflowClient(team.mlflow, team.mlflow)
    (model,) = registry.search_registered_models("name LIKE 'dreamshard-%'")
    versions = registry.search_model_versions(f"name='{model.name}'")
    champion = str(model.aliases.get("champion"))
    base = max(versions, key=lambda version: (str(version.version) == champion, int(version.version)))
    return int(registry.get_run(base.run_id).data.params["seed"])


def test_a_running_teams_backup_is_restored_upgraded_and_worked_with_elsewhere(
    team, finished, s3_environment, tmp_path
):
    code, said = on(team.database, "sh", str(DEPLOY / "backup.sh"), str(tmp_path / "backup"))
    assert code == 0, said
    code, said = on(team.database, "sh", str(DEPLOY / "restore.sh"), str(tmp_path / "backup"))
    assert code == 1, "replaced the databases of servers that run"
    assert "connections use the databases" in said
    code, said = on(team.database, "sh", str(DEPLOY / "restore.sh"), str(tmp_path / "none"))
    assert (code, "nothing was restored" in said) == (1, True), said
    with ExitStack() as ending:
        database = ending.enter_context(postgres(DEPLOY / "databases.sql"))
        for _ in range(2):  # the second time over databases that are not empty
            code, said = on(database, "sh", str(DEPLOY / "restore.sh"), str(tmp_path / "backup"))
            assert code == 0, said
        commands, addresses = upgrades(database)
        back = "from mlflow.store.db.utils import _get_alembic_config as config; from alembic.command import downgrade as d; "
        code, said = on(
            database, sys.executable, "-c", f"{back}d(config({addresses['MLFLOW_BACKEND_STORE_URI']!r}), '-1')"
        )
        assert code == 0, said
        code, said = on(database, "prefect", "server", "database", "downgrade", "-r", "-1", "--yes", **addresses)
        assert code == 0, said
        for command in commands:
            code, said = on(database, *command, **addresses)
            assert code == 0, said
        (tmp_path / "new").mkdir()
        other = Team(tmp_path / "new", database, s3_environment, ending, ["alpha"])
        before = team.api("flow_runs/filter", flow_runs={"id": {"any_": list(finished.values())}})
        after = other.api("flow_runs/filter", flow_runs={"id": {"any_": list(finished.values())}})
        names = {(run["id"], run["state_type"], run["end_time"]) for run in before}
        assert {(run["id"], run["state_type"], run["end_time"]) for run in after} == names
        other.retrained([("alpha", seed_in_use(team))])
        found = [MlflowClient(each.mlflow, each.mlflow) for each in (team, other)]
        old, new = (
            {version.version: version.tags["training"] for version in each.search_model_versions()} for each in found
        )
        assert new == old, "the run of the restored servers did not find the version of its training"
