"""`dreamshard doctor`: what this machine has, what is missing, and what to do about it."""

import importlib
import importlib.metadata
import os
import platform
import shutil
import socket
from pathlib import Path
from typing import Any

import typer

from flows.cli import terminal
from flows.cli.options import HomeOption, JsonOption, enter

PINS = ("torch", "prefect", "mlflow", "duckdb", "pyarrow", "fastapi", "sqlalchemy", "safetensors", "torchrec")


def doctor(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Devices, fbgemm build, pins, servers, home, store: what is there, what is missing, what to do."""
    folder = enter(home, shared=False).settings.home
    checks = [_python(), *_pins(), _fbgemm(), _devices(), *_servers(), _home(folder), _store()]
    if as_json:
        terminal.print_json(checks)
    else:
        terminal.print_table(checks)
    if any(check["state"] == "missing" for check in checks):
        raise typer.Exit(1)


def _check(what: str, state: str, found: str, advice: str = "") -> dict[str, Any]:
    return {"what": what, "state": state, "found": found, "to do": advice}


def _python() -> dict[str, Any]:
    version = platform.python_version()
    good = version.startswith(("3.11.", "3.12."))
    return _check("Python", "ok" if good else "missing", version, "" if good else "use Python 3.11 or 3.12")


def _pins() -> list[dict[str, Any]]:
    wanted = _wanted()
    checks = []
    for name in PINS:
        pin = wanted.get(name)
        try:
            version = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            needed = name != "torchrec"
            advice = "make run" if needed else "pip install --no-deps torchrec==1.8.0, for --format torchrec"
            checks.append(_check(name, "missing" if needed else "optional", "not installed", advice))
            continue
        good = pin is None or pin == version
        checks.append(_check(name, "ok" if good else "other", version, "" if good else f"tested with {pin}: make run"))
    return checks


def _wanted() -> dict[str, str]:
    """The versions that this project pins, by package."""
    pins = {}
    for requirement in importlib.metadata.requires("dreamshard") or []:
        name, _, version = requirement.partition(";")[0].strip().partition("==")
        pins[name] = version
    return pins


def _fbgemm() -> dict[str, Any]:
    try:
        importlib.import_module("fbgemm_gpu")  # only whether it loads; the testbeds use it
    except (ImportError, OSError, RuntimeError) as error:
        return _check("fbgemm", "missing", str(error).splitlines()[0], "make run; fbgemm 1.8 goes with torch 2.13 only")
    for name in ("fbgemm-gpu-cpu", "fbgemm-gpu"):
        try:
            return _check("fbgemm", "ok", f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return _check("fbgemm", "other", "loads, but from no package known here", "make run")


def _devices() -> dict[str, Any]:
    import torch

    if torch.cuda.is_available():
        return _check("devices", "ok", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}")
    advice = (
        "" if shutil.which("nvidia-smi") is None else "the driver answers but torch sees no GPU: install the cuda extra"
    )
    found = f"no GPU; {os.cpu_count()} CPU cores: testbeds cluster (CPU), emulated and simulated"
    return _check("devices", "ok", found, advice)


def _servers() -> list[dict[str, Any]]:
    checks = []
    for name, port, variable in (("Prefect", 4200, "PREFECT_API_URL"), ("MLflow", 5000, "MLFLOW_TRACKING_URI")):
        address = os.environ.get(variable)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.settimeout(0.5)
            answers = probe.connect_ex(("127.0.0.1", port)) == 0
        found = f"{variable}={address}" if address else (f"something listens on {port}" if answers else "not running")
        advice = "" if address or answers else "not needed for `run`; `dreamshard up` starts it"
        checks.append(_check(f"{name} server", "ok" if address or answers else "optional", found, advice))
    return checks


def _home(folder: Path) -> dict[str, Any]:
    free = shutil.disk_usage(folder).free
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    advice = "" if free > 2 * 2**30 else "less than 2 GiB left on this disk: free some or use --home elsewhere"
    return _check(
        "home",
        "ok" if not advice else "other",
        f"{folder}, {size / 2**20:.0f} MiB, {free / 2**30:.0f} GiB free",
        advice,
    )


def _store() -> dict[str, Any]:
    from storage.store import open_store

    try:
        settings = open_store().settings
    except ValueError as error:
        return _check("store", "missing", str(error), "correct DREAMSHARD_STORE or its credentials")
    if settings.store_root == settings.home:
        return _check("store", "ok", "in the home", "for a team: DREAMSHARD_STORE, e.g. s3://bucket/prefix")
    return _check("store", "ok", f"{settings.store_root} can be written; MLflow's files at {settings.artifact_root}")
