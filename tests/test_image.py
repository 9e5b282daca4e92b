"""The image of `deploy/Dockerfile`, as far as it can be checked without a container engine: its user runs its services."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from flows.servers.local import STARTUP_S
from tests.helpers.compose import DEPLOY, PROJECT, image_environment, ours, services
from tests.helpers.ports import free_port


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
    locks = re.findall(r"--requirement \"?lock/([^.]+)\.txt", dockerfile)
    assert locks == ["base", "${EXTRA}", "team"]
    assert all((PROJECT / "lock" / f"{name}.txt").is_file() for name in ("base", "cpu", "cuda", "team"))
    assert re.findall(r"^USER (\S+)$", dockerfile, flags=re.MULTILINE) == ["1000"]
    of_root = dockerfile[: dockerfile.index("USER 1000")]
    assert of_root.index("chmod --recursive a+rX .") > of_root.rindex("COPY ")


USER = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]
USER += [
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
]  # may read what root installed in its own folders


def may_become_user_1000() -> bool:
    """Whether this process may become that user, who must be able to read what is installed here, and not to write it."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return False
    said = "import os, prefect; folder = os.path.dirname(prefect.__file__) + '/server';"
    said += "print(os.access(folder, os.R_OK), os.access(folder, os.W_OK))"
    environment = {"HOME": "/tmp", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*USER, sys.executable, "-c", said], capture_output=True, text=True, check=False, env=environment
    )
    return done.stdout.split() == ["True", "False"]


@pytest.fixture(scope="module")
def as_in_the_image():
    """Runs the command of a service as the image's user, in its environment; the folder /data and the port are replaced."""
    if not may_become_user_1000():
        pytest.skip("needs root, setpriv and a checkout that others may read, to run as the image's user")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(folder, 1000, 1000)
    port = free_port()
    logs = (folder / "service.log").open("w")

    def start(name: str, command: list[str] | None = None, **other: str) -> subprocess.Popen:
        service = services()[name]
        given = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "PYTHONPATH": str(PROJECT),
        }
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
BROWSER = {"Accept": "text/html"}


@contextmanager
def healthy(as_in_the_image, name: str, **other: str):
    """The running service `name`, once its health check passes; yields its address."""
    start, address, folder = as_in_the_image
    check = services()[name]["healthcheck"]["test"][1:]
    with start(name, **other) as process:
        try:
            deadline = time.monotonic() + STARTUP_S
            while start(name, check).wait() != 0:
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail((folder / "service.log").read_text()[-3000:])
            yield address
        finally:
            process.terminate()


@pytest.mark.long
def test_the_images_user_serves_prefects_pages_and_its_api(as_in_the_image):
    database = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": "sqlite+aiosqlite:////data/prefect.db"}
    with healthy(as_in_the_image, "prefect", **database) as address:
        page = httpx.get(address, headers=BROWSER, follow_redirects=True)
        assert (page.status_code, page.url.path) == (200, "/v2/")
        (script,) = re.findall(r'<script type="module"[^>]* src="([^"]+)"', page.text)
        asset = httpx.get(f"{address}{script}")
        assert asset.status_code == 200
        assert "javascript" in asset.headers["content-type"]
        asked = f"{address}/api/deployments/filter"
        assert httpx.post(asked, json={}).status_code == 200


@pytest.mark.long
def test_the_images_user_serves_mlflow(as_in_the_image):
    folder = as_in_the_image[2]
    database = {"MLFLOW_BACKEND_STORE_URI": "sqlite:////data/mlflow.db"}
    with healthy(as_in_the_image, "mlflow", **database) as address:
        asked = f"{address}/api/2.0/mlflow/experiments/search?max_results=5"
        for page in (address, asked):
            assert httpx.get(page).status_code == 200
        assert (folder / "mlflow.db").stat().st_uid == 1000
