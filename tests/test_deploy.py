"""What `deploy/` promises, as far as it can be checked without a container engine."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from flows.servers.processes import free_port

PROJECT = Path(__file__).parents[1]
DEPLOY = PROJECT / "deploy"
COMPOSE, STORE = ((DEPLOY / name).read_text() for name in ("compose.yaml", "store.yaml"))
SETTING = r"\$\{(\w+)(?::\?[^}]*)?\}"
SETTINGS = dict(re.findall(r"^([A-Z_]+)=(.*)$", (DEPLOY / ".env.example").read_text(), flags=re.MULTILINE))


def services(text: str = COMPOSE, **other: str) -> dict:
    """The services, each setting replaced by its value in `other` or the example."""
    given = SETTINGS | other
    return yaml.safe_load(re.sub(SETTING, lambda found: given[found[1]] or "ada:Pass-word_1", text))["services"]


def ours() -> dict:
    """The services that run our own image."""
    return {name: service for name, service in services().items() if "build" in service}


def test_every_setting_of_the_compose_file_is_explained_in_the_example_and_none_is_there_in_vain():
    used = set(re.findall(SETTING, COMPOSE + STORE))
    assert {name for name in SETTINGS if not name.startswith("COMPOSE_")} == used
    scheduled = {name for name in SETTINGS if name.startswith("DREAMSHARD_")} - {"DREAMSHARD_HOST", "DREAMSHARD_LOGIN"}
    assert {name for name, value in SETTINGS.items() if not value} - scheduled == {
        "POSTGRES_PASSWORD",
        "STORE_PASSWORD",
        "DREAMSHARD_LOGIN",
        "COMMIT",
        "PIP_EXTRA_INDEX_URL",
    }, "what has no default must be asked for"
    for name in ("POSTGRES_PASSWORD", "STORE_PASSWORD", "DREAMSHARD_LOGIN"):
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


def test_the_dockerfile_passes_its_linter():
    done = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_image_is_built_from_files_and_extras_that_exist_and_runs_as_an_ordinary_user():
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", dockerfile, flags=re.MULTILINE) for word in line.split()]
    assert all((PROJECT / name).exists() for name in copied), copied
    kept = re.findall(r"^!(\S+)$", (PROJECT / ".dockerignore").read_text(), flags=re.MULTILINE)
    assert sorted(kept) == sorted(copied)
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    arguments = set(re.findall(r"^ARG (\w+)", dockerfile, flags=re.MULTILINE))
    for name, service in ours().items():
        given = service["build"]["args"]
        assert set(given) == arguments or name == "worker-gpu", name
        assert given["EXTRA"] in extras
        assert (DEPLOY / service["build"]["context"]).resolve() == PROJECT
    (installed,) = re.findall(r'"\.\[\$\{EXTRA\},(.*)\]"', dockerfile)
    assert set(installed.split(",")) <= set(extras)
    assert re.findall(r"^USER (\S+)$", dockerfile, flags=re.MULTILINE) == ["1000"]
    of_root = dockerfile[: dockerfile.index("USER 1000")]
    assert of_root.index("chmod --recursive a+rX .") > of_root.rindex("COPY ")


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
    import typer.main

    from flows.cli.app import app

    assert set(commands("dreamshard")) == {"deploy", "worker-cpu", "worker-gpu"}
    for (name,) in commands("dreamshard").values():
        assert name in typer.main.get_command(app).commands


def test_mlflows_pages_may_change_what_they_show_under_the_name_that_people_use():
    from mlflow.server.security_utils import is_allowed_host_header, should_block_cors_request

    given = services(PUBLIC_HOST="gpu-7.team")["mlflow"]["environment"]
    hosts, origins = (given[f"MLFLOW_SERVER_{name}"].split(",") for name in ("ALLOWED_HOSTS", "CORS_ALLOWED_ORIGINS"))
    assert is_allowed_host_header(hosts, "gpu-7.team:5000")
    assert not should_block_cors_request("http://gpu-7.team:5000", "POST", origins)
    assert should_block_cors_request("http://evil.example:5000", "POST", origins)


def test_prefects_server_knows_every_setting_that_it_is_given():
    from prefect.settings.legacy import _get_settings_fields
    from prefect.settings.models.root import Settings

    from flows.servers.prefect_server import CALM, PAGES

    given = {*services()["prefect"]["environment"], *image_environment(), *CALM, *PAGES}
    assert {name for name in given if name.startswith("PREFECT_")} <= set(_get_settings_fields(Settings))


def image_environment() -> dict[str, str]:
    """The variables that the Dockerfile sets."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    words = [word for line in re.findall(r"^ENV (.*)$", text, flags=re.MULTILINE) for word in shlex.split(line)]
    return dict(word.split("=", 1) for word in words)


USER = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]
USER += [
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
]  # may read what root installed in its own folders


def may_become_user_1000() -> bool:
    """Whether this process may become that user, who must not be able to write what is installed here."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return False
    said = "import os, prefect; print(os.access(os.path.dirname(prefect.__file__) + '/server', os.W_OK))"
    environment = {"HOME": "/tmp", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [*USER, sys.executable, "-c", said], capture_output=True, text=True, check=False, env=environment
    )
    return done.stdout.strip() == "False"


@pytest.fixture(scope="module")
def as_in_the_image():
    """Runs the command of a service as the image's user, in its environment; the folder /data and the port are replaced."""
    if not may_become_user_1000():
        pytest.skip("needs root and setpriv, to run as the image's user")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(folder, 1000, 1000)
    port = free_port(0)
    logs = (folder / "service.log").open("w")

    def start(name: str, command: list[str] | None = None, **other: str) -> subprocess.Popen:
        service = services()[name]
        given = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(PROJECT)}
        given |= image_environment() | service["environment"] | other
        words = command or shlex.split(service["command"])
        adapted = [sys.executable if word == "python" else word.replace(INSIDE[name], str(port)) for word in words]
        return subprocess.Popen(
            [*USER, *adapted],
            cwd=PROJECT,
            env={key: value.replace("/data", str(folder)) for key, value in given.items()},
            stdout=logs,
            stderr=logs,
        )

    yield start, f"http://127.0.0.1:{port}", folder
    logs.close()
    shutil.rmtree(folder)


INSIDE = {"prefect": "4200", "mlflow": "5000"}
LOGIN_PAIR = ("ada", "Pass-word_1")
BROWSER = {"Accept": "text/html"}


@contextmanager
def healthy(as_in_the_image, name: str, **other: str):
    """The running service `name`, once its health check passes; yields its address."""
    start, address, folder = as_in_the_image
    check = services()[name]["healthcheck"]["test"][1:]
    with start(name, **other) as process:
        try:
            for _ in range(120):
                if start(name, check).wait() == 0:
                    break
                assert process.poll() is None, (folder / "service.log").read_text()[-3000:]
            else:
                pytest.fail((folder / "service.log").read_text()[-3000:])
            yield address
        finally:
            process.terminate()


@pytest.mark.server
def test_the_images_user_serves_prefects_pages_to_everyone_and_its_api_to_those_who_log_in(as_in_the_image):
    database = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": "sqlite+aiosqlite:////data/prefect.db"}
    with healthy(as_in_the_image, "prefect", **database) as address:
        page = httpx.get(address, headers=BROWSER, follow_redirects=True)
        assert (page.status_code, page.url.path) == (200, "/v2/")
        (script,) = re.findall(r'<script type="module"[^>]* src="([^"]+)"', page.text)
        asset = httpx.get(f"{address}{script}")
        assert asset.status_code == 200
        assert "javascript" in asset.headers["content-type"]
        asked = f"{address}/api/deployments/filter"
        statuses = [httpx.post(asked, json={}, auth=auth).status_code for auth in (None, ("ada", "x"), LOGIN_PAIR)]
        assert statuses == [401, 401, 200]


@pytest.mark.server
def test_the_images_user_serves_mlflow_to_those_who_log_in(as_in_the_image):
    folder = as_in_the_image[2]
    database = {"MLFLOW_BACKEND_STORE_URI": "sqlite:////data/mlflow.db"}
    with healthy(as_in_the_image, "mlflow", **database) as address:
        asked = f"{address}/api/2.0/mlflow/experiments/search?max_results=5"
        for page in (address, asked):
            answers = [httpx.get(page, auth=auth) for auth in (None, ("ada", "x"), LOGIN_PAIR)]
            assert [answer.status_code for answer in answers] == [401, 401, 200]
            assert answers[0].headers["www-authenticate"] == 'Basic realm="dreamshard"', "browsers ask for it"
        assert (folder / "mlflow.db").stat().st_uid == 1000


def test_the_setting_of_the_scheduled_flows_is_that_of_the_file_and_empty_unless_filled_in():
    from flows.servers.scheduled_setting import schedule_fields

    variables = {field.variable for field in schedule_fields()} | {"DREAMSHARD_NOTIFY"}
    given = services(**{name: f"of {name}" for name in variables})["deploy"]["environment"]
    assert {name: given.get(name) for name in variables} == {name: f"of {name}" for name in variables}
    assert all(SETTINGS[name] == "" for name in variables)


def test_the_servers_that_up_starts_treat_slots_as_those_of_the_compose_file_do():
    from flows.servers.local_servers import TEAM

    assert TEAM.items() <= services()["prefect"]["environment"].items()


def test_a_gpu_is_reserved_for_the_gpu_worker_alone():
    devices = {
        name: service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices")
        for name, service in services().items()
    }
    assert [name for name, found in devices.items() if found] == ["worker-gpu"]
    assert devices["worker-gpu"] == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    assert services()["worker-gpu"]["environment"] == services()["worker-cpu"]["environment"]


def many_hosts() -> dict[str, str]:
    """The examples of ranks on many hosts, by file name."""
    return {path.name: path.read_text() for path in (DEPLOY / "many-hosts").iterdir()}


def test_there_is_an_example_of_each_launcher_which_its_shell_can_read():
    assert set(many_hosts()) == {"torchrun.sh", "slurm.sbatch", "kubernetes.yaml", "ray.sh"}
    for path in (DEPLOY / "many-hosts").glob("*.s*"):
        shell = path.read_text().partition("\n")[0].removeprefix("#!")
        done = subprocess.run([shell, "-n", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_examples_start_commands_of_dreamshard_on_as_many_ranks_as_devices():
    import typer.main

    from flows.cli.app import app

    run = typer.main.get_command(app).commands["run"]
    known = {option for parameter in run.params for option in parameter.opts}
    slurm = many_hosts()["slurm.sbatch"]
    words = re.search(r"flows\.cli\.ranks \\\n *(.*)", slurm)[1].split()
    assert words[0] == "run"
    assert {word for word in words if word.startswith("--")} <= known
    nodes, tasks = (int(re.search(rf"--{name}=(\d+)", slurm)[1]) for name in ("nodes", "ntasks-per-node"))
    assert words[words.index("--devices") + 1] == str(nodes * tasks)

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
