import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]

pytestmark = pytest.mark.processes


def test_an_installed_wheel_places_a_bundled_list(tmp_path: Path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", PROJECT, source], check=True)  # a build writes into its source
    built = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, source]
    subprocess.run(built, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--target", installed, wheel], check=True, capture_output=True)
    command = [sys.executable, installed / "bin" / "dreamshard", "place", "mlperf-dlrm-dcnv2", "--devices", "8"]
    done = subprocess.run(
        [*command, "--hardware", "a100", "--placer", "lookup_greedy", "--html", "plan.html"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed), "DREAMSHARD_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"num_devices": 8' in done.stdout
    assert (tmp_path / "plan.html").stat().st_size > 1e6
    assert not (installed / "tests").exists()
