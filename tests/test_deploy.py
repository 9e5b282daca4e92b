"""The image, the compose files and the launchers of `deploy/`, and the locks, as far as no container engine is needed."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import fsspec
import pytest
import yaml

PROJECT = Path(__file__).parents[1]
DEPLOY = PROJECT / "deploy"
COMPOSE, STORE = ((DEPLOY / name).read_text() for name in ("compose.yaml", "store.yaml"))
SETTING = r"\$\{(\w+)(?::\?[^}]*)?\}"
SETTINGS = dict(re.findall(r"^([A-Z_]+)=(.*)$", (DEPLOY / ".env.example").read_text(), flags=re.MULTILINE))


def services(text: str = COMPOSE, **other: str) -> dict:
    """The services, each setting replaced by its value in `other` or the example."""
    given = SETTINGS | other
    return yaml.safe_load(re.sub(SETTING, lambda setting: given[setting[1]] or "ada:Pass-word_1", text))["services"]


def test_the_dockerfile_passes_its_linter():
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_image_is_built_from_files_and_extras_that_exist():
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", dockerfile, flags=re.MULTILINE) for word in line.split()]
    assert all((PROJECT / name).exists() for name in copied), copied
    assert sorted(re.findall(r"^!(\S+)$", (PROJECT / ".dockerignore").read_text(), re.MULTILINE)) == sorted(copied)
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    built = [service["build"] for service in services().values() if "build" in service]
    assert {build["args"]["EXTRA"] for build in built} <= extras.keys()
    locks = re.findall(r"--requirement \"?lock/([^.]+)\.txt", dockerfile)
    assert locks == ["base", "${EXTRA}", "team"]
    assert re.findall(r"^USER (\S+)$", dockerfile, flags=re.MULTILINE) == ["1000"]


def test_every_setting_of_the_compose_files_is_in_the_example():
    assert {name for name in SETTINGS if not name.startswith("COMPOSE_")} == set(re.findall(SETTING, COMPOSE + STORE))
    for name in ("POSTGRES_PASSWORD", "STORE_PASSWORD", "LOGIN"):
        used = re.findall(rf"\$\{{{name}([^}}]*)\}}", COMPOSE + STORE)
        assert set(used) == {":?fill it in in .env"}, f"{name} may be empty"


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="needs docker-compose (Debian's package)")
@pytest.mark.parametrize("own_bucket", [False, True])
def test_compose_itself_accepts_the_files(tmp_path, own_bucket):
    store = {"STORE_ENDPOINT": "https://s3.eu-west-1.amazonaws.com", "STORE_USER": "ada", "STORE_REGION": "eu-west-1"}
    chosen = store | {"COMPOSE_FILE": "compose.yaml", "COMPOSE_PROFILES": "cpu"} if own_bucket else {}
    shutil.copytree(DEPLOY, tmp_path, dirs_exist_ok=True)
    given = {name: value or "secret" for name, value in SETTINGS.items()} | chosen
    (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    only_path = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["docker-compose", "config"], capture_output=True, cwd=tmp_path, env=only_path, check=True)
    services_read = yaml.safe_load(done.stdout)["services"]
    assert set(services()) - {"worker-cpu", "worker-gpu"} <= set(services_read)
    assert ("store" in services_read) == (not own_bucket)
    if own_bucket:
        credentials = {"AWS_ENDPOINT_URL": store["STORE_ENDPOINT"], "AWS_ACCESS_KEY_ID": "ada"}
        assert services_read["worker-cpu"]["environment"].items() >= credentials.items()


def test_the_bucket_is_made_once_and_then_used_as_it_is(s3_environment):
    command = [sys.executable, *services(BUCKET="new-bucket")["bucket"]["command"][1:]]
    for _ in range(2):
        subprocess.run(command, env=os.environ | s3_environment, check=True)
    store = fsspec.filesystem("s3", endpoint_url=s3_environment["AWS_ENDPOINT_URL_S3"], key="team", secret="any")
    assert store.exists("new-bucket")


def test_passwords_are_in_no_command_and_ports_are_on_loopback():
    for name, service in (services() | services(STORE)).items():
        assert "Pass-word_1" not in str(service.get("command")), name
        assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in service.get("ports", [])), name
        assert ":latest" not in service.get("image", ""), name


def many_hosts() -> dict[str, str]:
    """The examples of ranks on many hosts, by file name."""
    return {path.name: path.read_text() for path in (DEPLOY / "many-hosts").iterdir()}


def test_each_launchers_example_is_read_by_its_shell():
    assert set(many_hosts()) == {"torchrun.sh", "slurm.sbatch", "kubernetes.yaml", "ray.sh"}
    for path in (DEPLOY / "many-hosts").glob("*.s*"):
        shell = path.read_text().partition("\n")[0].removeprefix("#!")
        done = subprocess.run([shell, "-n", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_examples_start_commands_on_as_many_ranks_as_devices():
    from flows.cli.app import app

    known = {option for argument in app["run"].assemble_argument_collection() for option in argument.names}
    slurm = many_hosts()["slurm.sbatch"]
    words = re.search(r"flows\.cli\.ranks \\\n *(.*)", slurm)[1].split()
    assert words[0] == "run"
    assert {word for word in words if word.startswith("--")} <= known
    nodes, ranks = (int(re.search(rf"--{name}[= ](\d+)", slurm)[1]) for name in ("nodes", "nproc-per-node"))
    assert words[words.index("--devices") + 1] == str(nodes * ranks)

    service, job = yaml.safe_load_all(many_hosts()["kubernetes.yaml"])
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command = container["command"]
    ranks = command[command.index("flows.cli.ranks") + 1 :]
    assert ranks[0] == "run"
    assert {word.partition("=")[0] for word in ranks[1:]} <= known
    options = dict(word[2:].split("=") for word in command if word.startswith("--"))
    hosts, gpus = int(options["nnodes"]), int(options["nproc-per-node"])
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (hosts, hosts)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == gpus
    assert options["devices"] == str(hosts * gpus)
    first = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert options["master-addr"] == first
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]


LOCKS = sorted((PROJECT / "lock").glob("*.txt"))
ENTRY = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;\\]+)", re.MULTILINE)


def versions(path: Path) -> dict[str, str]:
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in ENTRY.findall(path.read_text())}


def test_every_constraint_is_locked_at_its_version():
    locked = {name: version for path in LOCKS for name, version in versions(path).items()}
    pinned = versions(PROJECT / "constraints.txt")
    assert {name: locked.get(name) for name in pinned} == pinned, "run `make lock`"


def test_a_cpu_installation_has_one_build_of_fbgemm_and_no_cuda():
    names = versions(PROJECT / "lock" / "base.txt").keys() | versions(PROJECT / "lock" / "cpu.txt").keys()
    assert "fbgemm-gpu-cpu" in names
    assert not [name for name in names if name in ("torch", "triton", "fbgemm-gpu") or name.startswith("nvidia-")]
