import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest
from mlflow import MlflowClient

from storage.settings import Settings
from tests.flows.servers_up import until
from tests.helpers.lake import query
from tests.helpers.ports import free_port

INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
USER, PASSWORD = "dreamshard", "se%cret-that-nobody-may-read"  # a password that an address must escape
DEPLOY = Path(__file__).parents[2] / "deploy"
SEEDS = {"alpha": 0, "beta": 1}  # by worker, all at once
OPTIONS = {"recipe": "smoke", "testbed": "simulated:a100", "batch_size": 8192}  # smaller batches cost the same anywhere

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not INSTALLED, reason="needs PostgreSQL's server (Debian's package postgresql)"),
]


@contextmanager
def postgres() -> Iterator[str]:
    """`USER:PASSWORD@HOST:PORT` of a server with the databases that a container makes at its first start."""
    programs = INSTALLED[-1].parent
    folder = Path(tempfile.mkdtemp(prefix="dreamshard-postgres-"))  # another user may not enter pytest's folder
    as_other: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        other = next(user for user in pwd.getpwall() if user.pw_name in ("postgres", "nobody"))
        os.chown(folder, other.pw_uid, other.pw_gid)
        as_other = ["setpriv", f"--reuid={other.pw_uid}", f"--regid={other.pw_gid}", "--clear-groups"]
    (folder / "password").write_text(PASSWORD)
    (folder / "password").chmod(0o644)
    port, data = free_port(), folder / "data"
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"

    def call(program: str, *arguments: str | Path) -> None:
        command = [*as_other, programs / program, *arguments]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, timeout=240)

    try:
        call("initdb", "-D", data, "-U", USER, "-A", "scram-sha-256", "--pwfile", folder / "password", "--no-sync")
        call("pg_ctl", "-D", data, "-w", "-o", options, "-l", folder / "log", "start")
        try:
            address = f"{USER}:{PASSWORD.replace('%', '%25')}@127.0.0.1:{port}"
            for arguments in (["-c", "create database prefect"], ["-f", str(DEPLOY / "databases.sql")]):
                server = f"postgresql://{address}/postgres"
                subprocess.run([programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", server, *arguments], check=True)
            yield address
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


class Team:
    """Servers on PostgreSQL, and workers whose homes are named after them."""

    def __init__(self, folder: Path, database: str, s3, ending: ExitStack):
        self.folder, self.database, self.ending = folder, database, ending
        self.store = {**s3, "DREAMSHARD_STORE": "s3://team/shared"}
        environment = {name: value for name, value in os.environ.items() if name != "PREFECT_HOME"} | self.store
        databases = {
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://{database}/prefect",
            "MLFLOW_TRACKING_URI": f"postgresql://{database}/mlflow",
            "PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "1",
        }
        ports = ("--prefect-port", str(free_port()), "--mlflow-port", str(free_port()))
        up = self.started("servers", environment | databases, "up", "--no-worker", *ports)

        def addresses():
            said = (folder / "servers.log").read_text()
            assert up.poll() is None, said
            printed = {line.split()[0]: line.split()[1] for line in said.splitlines() if len(line.split()) > 1}
            return printed if "Start" in printed else None

        ready = until(addresses, 600)
        self.prefect, self.mlflow = (
            ready["Prefect"].removesuffix("/v2/deployments"),
            ready["MLflow"].removesuffix("/#/models"),
        )
        client = environment | {"PREFECT_API_URL": f"{self.prefect}/api", "MLFLOW_TRACKING_URI": self.mlflow}
        for name in SEEDS:
            self.started(name, client, "worker", "--queue", name)

    def started(self, name: str, environment: dict[str, str], *command: str) -> "subprocess.Popen[bytes]":
        """A process in a home of its own, its output in a log; it gets Ctrl-C at the end, as from its terminal."""
        (self.folder / name).mkdir()
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli.app", *command],
            cwd=self.folder / name,
            env=environment | {"DREAMSHARD_HOME": str(self.folder / name)},
            stdout=(self.folder / f"{name}.log").open("w"),
            stderr=subprocess.STDOUT,
        )
        self.ending.callback(process.wait, timeout=120)
        self.ending.callback(process.send_signal, signal.SIGINT)
        return process

    def api(self, path: str, method: str = "POST", **body):
        answer = httpx.request(method, f"{self.prefect}/api/{path}", json=body or None, timeout=30)
        answer.raise_for_status()
        return answer.json() if answer.content else None


@pytest.fixture(scope="module")
def team(tmp_path_factory, s3_environment):
    """A team on which a retraining per worker ran, all at once; all of them completed."""
    with ExitStack() as ending:
        made = Team(tmp_path_factory.mktemp("team"), ending.enter_context(postgres()), s3_environment, ending)
        (retrain,) = made.api("deployments/filter", flows={"name": {"any_": ["retrain"]}})
        made.api(f"deployments/{retrain['id']}", "PATCH", concurrency_limit=3)
        ids = [
            made.api(
                f"deployments/{retrain['id']}/create_flow_run",
                parameters=OPTIONS | {"seed": seed},
                work_queue_name=name,
            )["id"]
            for name, seed in SEEDS.items()
        ]

        def ended():
            runs = made.api("flow_runs/filter", flow_runs={"id": {"any_": ids}})
            return runs if all(run["end_time"] for run in runs) else None

        runs = until(ended, 600)
        logs = "\n".join((made.folder / f"{name}.log").read_text()[-3000:] for name in SEEDS)
        assert {run["state_type"] for run in runs} == {"COMPLETED"}, logs
        assert max(run["start_time"] for run in runs) < min(run["end_time"] for run in runs), "not at once"
        yield made


def test_parallel_retrainings_make_one_champion_at_most(team):
    registry = MlflowClient(team.mlflow, team.mlflow)
    (model,) = registry.search_registered_models("name LIKE 'dreamshard.%'")
    versions = registry.search_model_versions(f"name='{model.name}'")
    runs = [registry.get_run(version.run_id) for version in versions]
    assert sorted(run.data.tags["seed"] for run in runs) == ["0", "1"]
    assert len({version.tags["training"] for version in versions}) == 2
    assert "previous" not in model.aliases, "nobody took the champion's place"
    assert all(version.tags["decided_by"] == "evaluation" for version in versions)
    assert all(run.info.artifact_uri.startswith("mlflow-artifacts:") for run in runs), "through the server"


def test_everything_is_in_the_lake_once_and_no_lock_remains(team, monkeypatch):
    for name, value in team.store.items():
        monkeypatch.setenv(name, value)
    settings = Settings.from_environment(os.environ | {"DREAMSHARD_HOME": str(team.folder / "alpha")})
    for once, view in (("sample_id, device", "device_costs"), ("run_key, task, placer", "evaluations")):
        (row,) = query(settings, f"select count(*) as n, count(distinct ({once})) as once from {view}")
        assert row["n"] == row["once"] > 0
    left = map(str, [*settings.store_root.rglob("*"), *team.folder.rglob("*")])
    assert not [path for path in left if path.endswith(".tmp") or "/sample_buffer/" in path]
    locks = list(team.folder.rglob("locks/*.lock"))
    assert {path.parts[-3] for path in locks} == set(SEEDS)
    for path in locks:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    limits = {limit["name"]: limit["active_slots"] for limit in team.api("v2/concurrency_limits/filter", limit=200)}
    assert "dreamshard-registry" in limits
    assert set(limits.values()) == {0}


def test_a_running_teams_backup_is_restored_elsewhere(team, tmp_path):
    def on(database: str, *command) -> tuple[int, str]:
        """Exit code and output of a command on this PostgreSQL server."""
        login, _, address = database.rpartition("@")
        (user, password), (host, port) = login.split(":"), address.split(":")
        server = {"PGUSER": user, "PGPASSWORD": unquote(password), "PGHOST": host, "PGPORT": port, "IN": "env"}
        server["PATH"] = f"{INSTALLED[-1].parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(command, env=os.environ | server, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    backup, restore = (("sh", DEPLOY / f"{name}.sh", tmp_path / "backup") for name in ("backup", "restore"))
    counts = [("psql", "-d", name, "-Atc", f"select count(*) from {table}")
              for name, table in (("prefect", "deployment"), ("mlflow", "model_versions"))]  # fmt: skip
    code, said = on(team.database, *backup)
    assert code == 0, said
    code, said = on(team.database, *restore)
    assert code == 1, "replaced the databases of servers that run"
    assert "connections use the databases" in said
    assert "nothing was restored" in on(team.database, *restore[:2], tmp_path / "none")[1]
    with postgres() as database:
        for _ in range(2):  # the second time over databases that are not empty
            code, said = on(database, *restore)
            assert code == 0, said
        assert [on(database, *count) for count in counts] == [on(team.database, *count) for count in counts]
