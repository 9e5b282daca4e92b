"""The commands that only look: `models`, `sql`, `doctor`."""

import importlib
import importlib.metadata
import os
import platform
import shutil
import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli import terminal
from flows.cli.options import HomeOption, JsonOption, enter

PINS = ("torch", "prefect", "mlflow", "duckdb", "pyarrow", "fastapi", "sqlalchemy", "safetensors", "torchrec")


KEY_METRICS = (
    "eval_overall_ms",
    "eval_gain_over_random",
    "eval_gain_over_best_baseline",
    "eval_gain_over_best_baseline_low",
    "eval_gain_over_best_baseline_high",
    "eval_predicted_mape",
    "eval_place_ms",
    "cost_heldout_mape",
    "compared_overall_ms",
    "compared_predicted_mape",
)
"""What `models` shows of a version at a glance; `models VERSION` and `--json` show all."""
SHOWN = 5  # versions that fit a terminal


def models(
    version: Annotated[
        str | None, typer.Argument(help="A version or alias: everything about it, and why it was (not) promoted.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Versions beyond the newest and those with an alias.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Champion, challenger, previous and other versions side by side; with VERSION one of them in full."""
    enter(home, existing=True)
    from storage.mlflow_store import versions
    from storage.settings import Settings

    if version is not None:
        _show_version(versions.version(Settings.load(), version), as_json=as_json)
        return
    found = versions.versions(Settings.load())
    if as_json:
        terminal.print_json(found)
        return
    if not found:
        terminal.say("no versions yet; `dreamshard run` trains the first")
        return
    newest = [entry["version"] for entry in found[:SHOWN]]
    shown = [entry for entry in found if every or entry["aliases"] or entry["version"] in newest]
    names = ["aliases", "created_at", *versions.FACTS, *(name for name in KEY_METRICS if name in found[0])]
    columns = {f"version {entry['version']}": entry for entry in reversed(shown)}
    terminal.print_table(
        [{"": name} | {head: _short(name, entry) for head, entry in columns.items()} for name in names]
    )
    for head, entry in columns.items():
        terminal.say(f"{head}: {entry['reason']}")
    if len(shown) < len(found):
        terminal.say(f"{len(found) - len(shown)} older versions: --all")


def _short(name: str, entry: dict[str, Any]) -> Any:
    value = entry[name]
    return value[:12] if name == "commit" and value else value


def _show_version(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        terminal.print_json(found)
        return
    description, tags = found.pop("description"), found.pop("tags")
    history = tags.pop("history", "")
    terminal.print_table([{"": name, f"version {found['version']}": value} for name, value in (found | tags).items()])
    terminal.say("Decisions:")
    for line in history.splitlines() or ["none yet"]:
        terminal.say(f"  {line}")
    terminal.say(description)


def make_champion(version: str, reason: str, home: Path | None, *, as_json: bool) -> None:
    """`promote VERSION`: change the champion by hand and say what it was and is."""
    enter(home, existing=True)
    from flows.reports import tracking
    from flows.runtime import locks

    with locks.of_registry():  # a retraining may be promoting at this moment
        change = tracking.make_champion(version, reason)
    if as_json:
        terminal.print_json(change)
        return
    now, former = change["version"], change["former"]
    if now == former:
        line = f"Version {now} is the champion already; nothing changed"
    elif former is None:
        line = f"Version {now} is champion; there was none before"
    else:
        line = f"Version {now} is champion; version {former}, champion until now, is kept as `previous`"
    terminal.say(line)
    if former not in (None, now):
        terminal.say(f"Undo: {terminal.typed('promote previous')}")


def sql(
    query: Annotated[
        str,
        typer.Argument(help="Over tables, tasks, cost_samples, device_costs, placements, evaluations, shard_costs."),
    ],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask DuckDB over everything in the lake."""
    enter(home, existing=True)
    from storage.lake import catalog
    from storage.settings import Settings

    rows = catalog.query(Settings.load(), query)
    if as_json:
        terminal.print_json(rows)
        return
    terminal.print_table(rows)


def doctor(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Devices, fbgemm build, pins, servers, home, store: what is there, what is missing, what to do."""
    folder = enter(home, store=False)
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
    from storage.settings import Settings

    try:
        settings = Settings.load()
    except ValueError as error:
        what, _, advice = str(error).rpartition("; ")
        return _check("store", "missing", what, advice)
    if settings.store_root == settings.home:
        return _check("store", "ok", "in the home", "for a team: DREAMSHARD_STORE, e.g. s3://bucket/prefix")
    return _check("store", "ok", f"{settings.store_root} can be written; MLflow's files at {settings.artifact_root}")
