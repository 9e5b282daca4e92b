"""What a home holds and whether every reader reads it, for trials that kill whoever writes there."""

import json
import os
import re
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OWN = ("place_ms", "created_at", "evaluation_id", "sample_id")
_MODEL_ID = re.compile(r"-m-[0-9a-f]{32}$")  # of a measurement of reference tasks


@dataclass(frozen=True)
class State:
    """A home as its readers see it.

    Attributes:
        problems: what could not be read, or is there twice, one sentence each.
        samples: ids of the cost samples that training and evaluations measured, also of those not in the lake yet.
        measured: what they are of and what they cost, sorted; the same in another home, where ids differ.
        models: of each version: number, what it is champion of, digest of its files, training, evaluation.
        evaluations: rows of measured placers, without times of day and of placing.
        statuses: of MLflow's runs: how many of each.
        leftovers: temporary files.
    """

    problems: tuple[str, ...]
    samples: frozenset[str]
    measured: tuple[str, ...]
    models: tuple[tuple[str, ...], ...]
    evaluations: tuple[str, ...]
    statuses: tuple[tuple[str, int], ...]
    leftovers: tuple[str, ...]


def state() -> State:
    """The home of this process's environment; run it in a process of its own."""
    from storage.settings import Settings

    settings = Settings.from_environment()
    problems: list[str] = []
    has_lake = (settings.lake_root / "tables").exists()
    if has_lake:
        problems += _unreadable_views()
    problems += _unreadable_files(settings)
    rows = _sample_rows(settings, problems)
    return State(
        problems=tuple(problems),
        samples=frozenset(rows),
        measured=tuple(sorted(map(_comparable, rows.values()))),
        models=_models(settings),
        evaluations=_evaluations(settings) if has_lake else (),
        statuses=_statuses(settings),
        leftovers=tuple(sorted(str(path) for path in settings.home.rglob("*.tmp"))),
    )


def stage_of(home: Path, since_s: float = 0.0) -> str:
    """The stage of a chain that a run of the home's own database is in, by MLflow's runs; `start` before all of them.

    Only runs that began after `since_s`, seconds since 1970, count: those of killed commands stay RUNNING for a while.
    """
    database = home / "mlflow.db"
    if not database.exists():
        return "start"
    query = (
        "select tags.value from runs join tags on tags.run_uuid = runs.run_uuid and tags.key = 'dreamshard.stage' "
        "where runs.status = 'RUNNING' and runs.start_time >= ? order by runs.start_time desc limit 1"
    )
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
        try:
            found = connection.execute(query, (1000 * since_s,)).fetchone()
        except sqlite3.OperationalError:  # it has no tables yet
            found = None
    return str(found[0]) if found else "start"


def _unreadable_views() -> list[str]:
    from storage import load
    from storage.lake import catalog

    home = None if os.environ.get("DREAMSHARD_STORE") else os.environ["DREAMSHARD_HOME"]
    problems = []
    for name in catalog.VIEWS:
        try:
            load.view(name, home)
        except Exception as error:  # noqa: BLE001 - it is the answer
            problems.append(f"view {name}: {type(error).__name__}: {error}")
    return problems


def _unreadable_files(settings: Any) -> list[str]:
    """Checkpoints, reports and data sets that are there and that the library's readers refuse."""
    from storage.run_records import checkpoints, report_store
    from storage.store import open_store

    store, problems = open_store(settings), []

    def read(what: str, reader: Any, *given: Any) -> Any:
        try:
            return reader(*given)
        except Exception as error:  # noqa: BLE001 - it is the answer
            problems.append(f"{what}: {type(error).__name__}: {error}")
            return None

    for version in read("data sets", store.lake.dataset_versions) or ():
        read(f"data set {version}", store.lake.read_dataset, version)
    read("cost samples", store.lake.read_cost_samples)
    if store.checkpoints.exists():
        for folder in store.checkpoints.iterdir():
            for file in (path for path in folder.iterdir() if path.name.endswith(".zip")):
                name = file.name.removesuffix(".zip")
                read(f"checkpoint {name}", checkpoints.load, store, folder.name, name)
                read(f"figures of {name}", checkpoints.figures, store, folder.name, name)
    if store.evaluations.exists():
        for file in (path for path in store.evaluations.iterdir() if path.name.endswith(".json")):
            read(f"report {file.name}", report_store.load, store.evaluations, file.name.removesuffix(".json"))
    return problems


def _sample_rows(settings: Any, problems: list[str]) -> dict[str, dict[str, Any]]:
    """The first row of each sample of the lake and of its buffer; one that is in the lake twice is a problem."""
    from storage.lake.parquet_files import read_parquet

    found: dict[str, dict[str, Any]] = {}
    in_lake: Counter[str] = Counter()
    for name in ("sample_buffer", "cost_samples"):
        folder = settings.lake_root / name
        for file in folder.rglob("*.parquet") if folder.exists() else ():
            rows = read_parquet(file).to_pylist()
            devices = Counter(row["sample_id"] for row in rows)
            found |= {row["sample_id"]: row for row in rows if row["device"] == 0}
            halves = {row["sample_id"] for row in rows if devices[row["sample_id"]] != row["num_devices"]}
            problems += [f"sample {sample} lacks a device" for sample in sorted(halves)]
            in_lake.update(set(devices) if name == "cost_samples" else ())
    problems += [f"sample {sample} is in the lake twice" for sample, count in in_lake.items() if count > 1]
    return found


def _comparable(row: dict[str, Any]) -> str:
    """A row as it is in every home: without ids and times, and without the id that MLflow draws for a model."""
    kept = {name: value for name, value in row.items() if name not in _OWN}
    kept["run_key"] = _MODEL_ID.sub("", str(row["run_key"]))
    return json.dumps(kept, sort_keys=True, default=str)


def _models(settings: Any) -> tuple[tuple[str, ...], ...]:
    from storage.mlflow_store import registry

    found = []
    for version in registry.all_versions(settings):
        tags = version.tags
        digest = tags.get(registry.DIGEST_TAG, "")
        standing = tags.get("champion_of", "")  # not the alias, which follows what the home's schedule is for
        found.append((str(version.version), standing, digest, tags.get("training", ""), tags.get("evaluation", "")))
    return tuple(sorted(found))


def _evaluations(settings: Any) -> tuple[str, ...]:
    from storage.lake import catalog

    rows = catalog.query(settings, "select * from evaluations")
    return tuple(sorted(map(_comparable, rows)))


def _statuses(settings: Any) -> tuple[tuple[str, int], ...]:
    from storage.mlflow_store import runs
    from storage.mlflow_store.experiment import EXPERIMENT

    tracking = runs.client(settings)
    experiment = tracking.get_experiment_by_name(EXPERIMENT)
    found = tracking.search_runs([experiment.experiment_id]) if experiment else []
    return tuple(sorted(Counter(run.info.status for run in found).items()))
