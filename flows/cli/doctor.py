"""`dreamshard doctor`: what this machine has, what is missing, and what to do about it."""

import importlib
import importlib.metadata
import os
import platform
import shutil
from pathlib import Path

import torch

from dreamshard.files.text import without_passwords
from flows.cli import terminal
from flows.cli.command import Json, command, open_home
from flows.servers.local import LOOPBACK, answers
from storage.store import open_store

PINS = ("torch", "prefect", "mlflow", "duckdb", "pyarrow", "fastapi", "sqlalchemy", "safetensors", "torchrec")

Check = tuple[str, str, str, str]
"""What was checked, its state (ok, other, optional, missing), what was found, and what to do."""


@command
def doctor(*, as_json: Json = False) -> None:
    """Check devices, the fbgemm build, pinned versions, servers, home and store; say what is missing and what to do."""
    home = open_home(shared=False, reads_only=True).settings.home
    checks = [
        _python(),
        *map(_pin, PINS),
        _fbgemm(),
        _devices(),
        _server("Prefect", "PREFECT_API_URL", "4200/api"),
        _server("MLflow", "MLFLOW_TRACKING_URI", "5000"),
        _home(home),
        _store(),
    ]
    names = ("what", "state", "found", "to do")
    rows = [dict(zip(names, map(without_passwords, check), strict=True)) for check in checks]
    if as_json:
        terminal.print_json(rows)
    else:
        terminal.print_table(rows)
    if any(row["state"] == "missing" for row in rows):
        raise SystemExit(1)


def _version(package: str) -> str:
    """Empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _python() -> Check:
    version = platform.python_version()
    is_tested = version.startswith(("3.11.", "3.12."))
    return ("Python", "ok", version, "") if is_tested else ("Python", "missing", version, "use Python 3.11 or 3.12")


def _pin(name: str) -> Check:
    requirements = importlib.metadata.requires("dreamshard") or []
    pins = dict(text.partition(";")[0].strip().split("==") for text in requirements if "==" in text)
    version, pin = _version(name).partition("+")[0], pins.get(name)
    if version:
        is_tested = pin in (None, version)
        return (name, "ok", version, "") if is_tested else (name, "other", version, f"tested with {pin}: make run")
    if name == "torchrec":
        return name, "optional", "not installed", "pip install --no-deps torchrec==1.8.0, for --format torchrec"
    return name, "missing", "not installed", "make run"


def _fbgemm() -> Check:
    try:
        importlib.import_module("fbgemm_gpu")  # only to see whether it loads; the testbeds use it
    except (ImportError, OSError, RuntimeError) as error:
        return "fbgemm", "missing", str(error).splitlines()[0], "make run; fbgemm 1.8 needs torch 2.13"
    found = [f"{name} {_version(name)}" for name in ("fbgemm-gpu-cpu", "fbgemm-gpu") if _version(name)]
    return "fbgemm", "ok", ", ".join(found) or "of an unknown package", ""


def _devices() -> Check:
    if torch.cuda.is_available():
        return "devices", "ok", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}", ""
    has_driver = shutil.which("nvidia-smi") is not None
    advice = "an NVIDIA driver is installed, but torch sees no GPU: install the cuda extra" if has_driver else ""
    found = f"no GPU; {os.cpu_count()} CPU cores: testbeds cluster (CPU), emulated and simulated"
    return "devices", "ok", found, advice


def _server(name: str, variable: str, port: str) -> Check:
    what, address = f"{name} server", os.environ.get(variable, "")
    if address.startswith("http"):
        if answers(f"{address.rstrip('/')}/health"):
            return what, "ok", f"{variable}={address}", ""
        return what, "missing", f"{variable}={address} does not answer", f"start it, or correct {variable}"
    if address:
        return what, "ok", f"{variable} is a database", ""
    if answers(f"http://{LOOPBACK}:{port}/health"):
        return what, "ok", f"one answers on port {port.partition('/')[0]}", f"to use it: {variable}"
    return what, "optional", "not running", "not needed for `run`; `dreamshard up` starts it"


def _home(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    found = f"{folder}, {size / 2**20:.0f} MiB, {free / 2**30:.0f} GiB free"
    if free > 2 * 2**30:
        return "home", "ok", found, ""
    return "home", "other", found, "less than 2 GiB left on this disk: free some, or use --home elsewhere"


def _store() -> Check:
    try:
        settings = open_store().settings
    except ValueError as error:
        return "store", "missing", str(error), "correct DREAMSHARD_STORE or its credentials"
    if settings.store_root == settings.home:
        return "store", "ok", "in the home", "to share it with a team: DREAMSHARD_STORE, e.g. s3://bucket/prefix"
    return "store", "ok", f"{settings.store_root} can be written; MLflow's files at {settings.artifact_root}", ""
