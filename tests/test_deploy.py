"""What the compose files of `deploy/` promise, as far as it can be checked without a container engine."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.helpers.compose import COMPOSE, DEPLOY, SETTING, SETTINGS, STORE, ours, services


def test_every_setting_of_the_compose_file_is_explained_in_the_example_and_none_is_there_in_vain():
    used = set(re.findall(SETTING, COMPOSE + STORE))
    assert {name for name in SETTINGS if not name.startswith("COMPOSE_")} == used
    assert {name for name, value in SETTINGS.items() if not value} == {
        "POSTGRES_PASSWORD",
        "STORE_PASSWORD",
        "LOGIN",
        "COMMIT",
        "PIP_EXTRA_INDEX_URL",
    }, "what has no default must be asked for"
    for name in ("POSTGRES_PASSWORD", "STORE_PASSWORD", "LOGIN"):
        used = re.findall(rf"\$\{{{name}([^}}]*)\}}", COMPOSE + STORE)
        assert used, name
        assert set(used) == {":?fill it in in .env"}, f"{name} may be empty"


def composed(folder: Path, **other: str) -> dict:
    """What compose itself makes of the settings, which it finds in `.env`; an old compose shows all profiles."""
    given = {name: value or "secret" for name, value in SETTINGS.items()} | other
    shutil.copytree(DEPLOY, folder, dirs_exist_ok=True)
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    done = subprocess.run(
        ["docker-compose", "config"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)["services"]


needs_compose = pytest.mark.skipif(
    shutil.which("docker-compose") is None, reason="needs docker-compose (Debian's package of that name)"
)


@needs_compose
def test_compose_itself_takes_the_files_that_the_settings_name_without_a_word_on_the_command_line(tmp_path):
    found = composed(tmp_path)
    assert {*services(), "store"} - {"worker-cpu"} <= set(found)
    assert SETTINGS["COMPOSE_PROFILES"] in found["worker-gpu"].get("profiles", ["gpu"])
    assert found["bucket"]["depends_on"] == {"store": {"condition": "service_healthy"}}


@needs_compose
def test_a_bucket_of_ones_own_takes_the_place_of_the_store(tmp_path):
    own = {"STORE_ENDPOINT": "https://s3.eu-west-1.amazonaws.com", "STORE_USER": "ada", "STORE_REGION": "eu-west-1"}
    found = composed(tmp_path, COMPOSE_FILE="compose.yaml", COMPOSE_PROFILES="cpu", **own)
    assert set(services()) - {"worker-gpu"} <= set(found)
    assert "store" not in found
    for name in ("bucket", "mlflow", "worker-cpu"):
        assert (
            found[name]["environment"].items()
            >= {
                "AWS_ENDPOINT_URL": own["STORE_ENDPOINT"],
                "AWS_ACCESS_KEY_ID": "ada",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_DEFAULT_REGION": "eu-west-1",
            }.items()
        ), name


def test_the_bucket_is_made_once_and_taken_as_it_is_afterwards(s3_environment):
    import fsspec

    command = services(BUCKET="new-bucket")["bucket"]["command"]
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, *command[1:]], env=os.environ | s3_environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    store = fsspec.filesystem("s3", endpoint_url=s3_environment["AWS_ENDPOINT_URL_S3"], key="team", secret="any")
    assert store.exists("new-bucket")


def test_passwords_are_in_no_command_and_every_port_is_bound_to_an_address():
    for name, service in (services() | services(STORE)).items():
        if "image" not in service:
            continue  # what another file says of it
        assert "Pass-word_1" not in str(service.get("command")), name
        for port in service.get("ports", []):
            assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port
        assert ":latest" not in service["image"]


def commands(program: str) -> dict[str, list[str]]:
    """Words after `program` of the services that run it."""
    given = {name: shlex.split(each["command"]) for name, each in ours().items() if isinstance(each["command"], str)}
    return {name: words[1:] for name, words in given.items() if words[0] == program}


def test_our_own_commands_are_ones_that_dreamshard_has():
    from flows.cli.app import app

    assert set(commands("dreamshard")) == {"deploy", "worker-cpu", "worker-gpu"}
    for (name,) in commands("dreamshard").values():
        assert app[name]


def test_a_gpu_is_reserved_for_the_gpu_worker_alone():
    devices = {
        name: service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices")
        for name, service in services().items()
    }
    assert [name for name, found in devices.items() if found] == ["worker-gpu"]
    assert devices["worker-gpu"] == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    assert services()["worker-gpu"]["environment"] == services()["worker-cpu"]["environment"]
