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

Check = dict[str, str]
"""`what` was checked, its `state` (ok, other, optional, missing), what was `found`, and what `to do`."""


@command
def doctor(*, as_json: Json = False) -> None:
    """Check devices, the fbgemm build, pinned versions, servers, home and store; say what is missing and what to do."""
    folder = open_home(shared=False, reads_only=True).settings.home
    servers = (("Prefect", "PREFECT_API_URL", "4200/api"), ("MLflow", "MLFLOW_TRACKING_URI", "5000"))
    checks = [
        _python(),
        *map(_pin, PINS),
        _fbgemm(),
        _devices(),
        *(_server(*server) for server in servers),
        _home(folder),
        _store(),
    ]
    if as_json:
        terminal.print_json(checks)
    else:
        terminal.print_table(checks)
    if any(each["state"] == "missing" for each in checks):
        raise SystemExit(1)


def _check(what: str, state: str, found: str, advice: str = "") -> Check:
    return {"what": what, "state": state, "found": without_passwords(found), "to do": without_passwords(advice)}


def _version(package: str) -> str:
    """Empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _python() -> Check:
    version = platform.python_version()
    is_tested = version.startswith(("3.11.", "3.12."))
    return _check("Python", "ok" if is_tested else "missing", version, "" if is_tested else "use Python 3.11 or 3.12")


def _pin(name: str) -> Check:
    requirements = [text.partition(";")[0].strip() for text in importlib.metadata.requires("dreamshard") or []]
    pins = {name: pin for name, _, pin in (text.partition("==") for text in requirements)}
    version, pin = _version(name).partition("+")[0], pins.get(name)
    if not version and name == "torchrec":
        advice = "pip install --no-deps torchrec==1.8.0, for --format torchrec"
        return _check(name, "optional", "not installed", advice)
    if not version:
        return _check(name, "missing", "not installed", "make run")
    if pin in (None, version):
        return _check(name, "ok", version)
    return _check(name, "other", version, f"tested with {pin}: make run")


def _fbgemm() -> Check:
    try:
        importlib.import_module("fbgemm_gpu")  # only to see whether it loads; the testbeds use it
    except (ImportError, OSError, RuntimeError) as error:
        return _check("fbgemm", "missing", str(error).splitlines()[0], "make run; fbgemm 1.8 needs torch 2.13")
    found = [f"{name} {_version(name)}" for name in ("fbgemm-gpu-cpu", "fbgemm-gpu") if _version(name)]
    return _check("fbgemm", "ok", ", ".join(found) or "of an unknown package")


def _devices() -> Check:
    if torch.cuda.is_available():
        return _check("devices", "ok", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}")
    has_driver = shutil.which("nvidia-smi") is not None
    advice = "an NVIDIA driver is installed, but torch sees no GPU: install the cuda extra" if has_driver else ""
    found = f"no GPU; {os.cpu_count()} CPU cores: testbeds cluster (CPU), emulated and simulated"
    return _check("devices", "ok", found, advice)


def _server(name: str, variable: str, port: str) -> Check:
    what, address = f"{name} server", os.environ.get(variable, "")
    if address.startswith("http"):
        if answers(f"{address.rstrip('/')}/health"):
            return _check(what, "ok", f"{variable}={address}")
        return _check(what, "missing", f"{variable}={address} does not answer", f"start it, or correct {variable}")
    if address:
        return _check(what, "ok", f"{variable} is a database")
    if answers(f"http://{LOOPBACK}:{port}/health"):
        return _check(what, "ok", f"one answers on port {port.partition('/')[0]}", f"to use it: {variable}")
    return _check(what, "optional", "not running", "not needed for `run`; `dreamshard up` starts it")


def _home(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    found = f"{folder}, {size / 2**20:.0f} MiB, {free / 2**30:.0f} GiB free"
    if free > 2 * 2**30:
        return _check("home", "ok", found)
    return _check("home", "other", found, "less than 2 GiB left on this disk: free some, or use --home elsewhere")


def _store() -> Check:
    try:
        settings = open_store().settings
    except ValueError as error:
        return _check("store", "missing", str(error), "correct DREAMSHARD_STORE or its credentials")
    if settings.store_root == settings.home:
        return _check(
            "store", "ok", "in the home", "to share it with a team: DREAMSHARD_STORE, e.g. s3://bucket/prefix"
        )
    return _check("store", "ok", f"{settings.store_root} can be written; MLflow's files at {settings.artifact_root}")
