"""The project's wheel, made of a copy of the checkout, and installed without its dependencies."""

import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


def make_wheel(folder: Path) -> Path:
    """Build the wheel; a build writes into its source."""
    for name in ("dreamshard", "storage", "flows"):
        shutil.copytree(PROJECT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, folder / "source")
    built = [sys.executable, *PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    subprocess.run([*built, folder / "source"], check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return made


def install(wheel: Path) -> Path:
    """A folder beside the wheel for `PYTHONPATH`."""
    target = wheel.parent / "installed"
    pip = [sys.executable, *PIP, "install", "--no-deps", "--target", target, wheel]
    subprocess.run(pip, check=True, capture_output=True)
    return target
