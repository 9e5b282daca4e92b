"""`dreamshard doctor`: what this machine has, what is missing, and what to do about it."""

import importlib
import importlib.metadata
import os
import platform
import shutil
from pathlib import Path

import typer

from flows.cli import terminal
from flows.cli.checks import Check, check
from flows.cli.command_options import HomeOption, JsonOption, enter
from flows.servers.local import LOOPBACK, answers

PINS = ("torch", "prefect", "mlflow", "duckdb", "pyarrow", "fastapi", "sqlalchemy", "safetensors", "torchrec")


def doctor(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Check devices, the fbgemm build, pinned versions, servers, home and store; say what is missing and what to do."""
    folder = enter(home, shared=False, reads_only=True).settings.home
    checks = [
        _python(),
        *_pins(),
        _fbgemm(),
        _devices(),
        *_servers(),
        _home(folder),
        _store(),
    ]
    if as_json:
        terminal.print_json(checks)
    else:
        terminal.print_table(checks)
    if any(each["state"] == "missing" for each in checks):
        raise typer.Exit(1)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> Check:
    version = platform.python_version()
    if version.startswith(("3.11.", "3.12.")):
        return check("Python", "ok", version)
    return check("Python", "missing", version, "use Python 3.11 or 3.12")


def _pins() -> list[Check]:
    requirements = [text.partition(";")[0].strip() for text in importlib.metadata.requires("dreamshard") or []]
    pins = {name: pin for name, _, pin in (text.partition("==") for text in requirements)}
    checks = []
    for name in PINS:
        version, pin = (_version(name) or "").partition("+")[0], pins.get(name)
        if not version and name == "torchrec":
            advice = "pip install --no-deps torchrec==1.8.0, for --format torchrec"
            checks.append(check(name, "optional", "not installed", advice))
        elif not version:
            checks.append(check(name, "missing", "not installed", "make run"))
        elif pin in (None, version):
            checks.append(check(name, "ok", version))
        else:
            checks.append(check(name, "other", version, f"tested with {pin}: make run"))
    return checks


def _fbgemm() -> Check:
    try:
        importlib.import_module("fbgemm_gpu")  # only to see whether it loads; the testbeds use it
    except (ImportError, OSError, RuntimeError) as error:
        return check("fbgemm", "missing", str(error).splitlines()[0], "make run; fbgemm 1.8 needs torch 2.13")
    for name in ("fbgemm-gpu-cpu", "fbgemm-gpu"):
        if version := _version(name):
            return check("fbgemm", "ok", f"{name} {version}")
    return check("fbgemm", "other", "loads, but from an unknown package", "make run")


def _devices() -> Check:
    import torch

    if torch.cuda.is_available():
        return check("devices", "ok", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}")
    has_driver = shutil.which("nvidia-smi") is not None
    advice = "an NVIDIA driver is installed, but torch sees no GPU: install the cuda extra" if has_driver else ""
    found = f"no GPU; {os.cpu_count()} CPU cores: testbeds cluster (CPU), emulated and simulated"
    return check("devices", "ok", found, advice)


def _servers() -> list[Check]:
    checks = []
    for name, port, variable, health in (
        ("Prefect", 4200, "PREFECT_API_URL", "/health"),
        ("MLflow", 5000, "MLFLOW_TRACKING_URI", "/health"),
    ):
        what, address = f"{name} server", os.environ.get(variable)
        if address and not address.startswith("http"):
            checks.append(check(what, "ok", f"{variable} is a database"))
        elif address:
            found, state = f"{variable}={address}", answers(f"{address.rstrip('/')}{health}")
            advice = f"nothing answers there: start it, or correct {variable}"
            checks.append(check(what, "ok", found) if state else check(what, "missing", found, advice))
        elif answers(f"http://{LOOPBACK}:{port}{'/api' if name == 'Prefect' else ''}{health}"):
            checks.append(check(what, "ok", f"one answers on port {port}", f"to use it: {variable}"))
        else:
            checks.append(check(what, "optional", "not running", "not needed for `run`; `dreamshard up` starts it"))
    return checks


def _home(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    found = f"{folder}, {size / 2**20:.0f} MiB, {free / 2**30:.0f} GiB free"
    if free > 2 * 2**30:
        return check("home", "ok", found)
    return check("home", "other", found, "less than 2 GiB left on this disk: free some, or use --home elsewhere")


def _store() -> Check:
    from storage.store import open_store

    try:
        settings = open_store().settings
    except ValueError as error:
        return check("store", "missing", str(error), "correct DREAMSHARD_STORE or its credentials")
    if settings.store_root == settings.home:
        return check("store", "ok", "in the home", "to share it with a team: DREAMSHARD_STORE, e.g. s3://bucket/prefix")
    return check("store", "ok", f"{settings.store_root} can be written; MLflow's files at {settings.artifact_root}")
