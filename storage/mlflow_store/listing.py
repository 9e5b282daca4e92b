"""All versions with their tags and figures in one reading, without MLflow where possible: importing it takes seconds.

A database that is a file on this host is read here as MLflow 3 lays it out, a server by `server_listing`; another database
or another layout is read through MLflow's client. Versions of all algorithms are read, each named by its reference.
"""

import math
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dreamshard.names import DEFAULT_ALGORITHM, Algorithm
from dreamshard.version_references import ALIASES, VersionReference, number_of
from storage.mlflow_store.presence import LOCAL
from storage.mlflow_store.standings import CHAMPION_OF
from storage.settings import REGISTERED_MODELS, Settings

EXPERIMENT = "dreamshard"
"""Name of the experiment that all runs are in."""

_WORKSPACE = "default"
_PAGE = 200  # versions, or runs, in one answer


@dataclass(frozen=True, kw_only=True)
class VersionEntry:
    """A version as the registry has it.

    Attributes:
        version: reference to it.
        run: id of the run that it came from; None where MLflow knows none.
        created_ms: time of its registration, milliseconds since 1970.
        description: Markdown.
        tags: by name.
        metrics: newest of its run, by name.
    """

    version: str
    run: str | None
    created_ms: int
    description: str
    tags: Mapping[str, str]
    metrics: Mapping[str, float]

    @property
    def algorithm(self) -> Algorithm:
        """Whose version it is."""
        return VersionReference.of(self.version).algorithm


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The registry.

    Attributes:
        aliases: alias to version, as references: `paper:champion` to `paper:1`.
        versions: newest first.
    """

    aliases: Mapping[str, str]
    versions: tuple[VersionEntry, ...]

    @classmethod
    def merged(cls, listings: Mapping[Algorithm, "Listing"]) -> "Listing":
        """The versions of several algorithms in one; those of an algorithm by number, also where the clock was set back."""
        since: dict[str, int] = {}
        for listing in listings.values():
            latest_ms = 0
            for entry in sorted(listing.versions, key=lambda entry: number_of(entry.version)):
                since[entry.version] = latest_ms = max(latest_ms, entry.created_ms)
        entries = [entry for listing in listings.values() for entry in listing.versions]
        return cls(
            aliases={alias: number for listing in listings.values() for alias, number in listing.aliases.items()},
            versions=tuple(sorted(entries, key=lambda entry: (-since[entry.version], -number_of(entry.version)))),
        )

    @property
    def tags(self) -> dict[str, Mapping[str, str]]:
        """Tags of each version."""
        return {entry.version: entry.tags for entry in self.versions}

    def of(self, algorithm: Algorithm) -> "Listing":
        """The versions of one algorithm."""
        return Listing(
            aliases={a: v for a, v in self.aliases.items() if VersionReference.of(a).algorithm == algorithm},
            versions=tuple(entry for entry in self.versions if entry.algorithm == algorithm),
        )

    def find(self, name: str, address: str) -> VersionEntry:
        """The version that a reference names.

        Args:
            name: of the version.
            address: of the registry, for the message.

        Raises:
            ValueError: there is none of that name; the message lists the existing ones.
        """
        wanted = VersionReference.of(name)
        number = self.aliases.get(str(wanted), str(wanted))
        found = next((entry for entry in self.versions if entry.version == number), None)
        if found is None:
            own = self.of(wanted.algorithm)
            raise ValueError(missing(wanted, address, own.aliases, own.tags))
        return found


def missing(
    wanted: VersionReference, address: str, aliases: Mapping[str, str], versions: Mapping[str, Mapping[str, str]]
) -> str:
    """Says that there is no such version, and which exist.

    Args:
        wanted: the version.
        address: of the registry.
        aliases: alias to version, of its algorithm.
        versions: tags of each version of its algorithm.
    """
    existing = []
    for version, tags in versions.items():
        named = [VersionReference.of(alias).name for alias, number in aliases.items() if number == version]
        named += [f"champion of {tags[CHAMPION_OF]}"] if CHAMPION_OF in tags else []
        existing.append(f"version {version}" + (f" ({', '.join(named)})" if named else ""))
    what = f"{wanted.name} yet" if wanted.name in ALIASES else f"version {str(wanted)!r}"
    option = "" if wanted.algorithm == DEFAULT_ALGORITHM else f" --algorithm {wanted.algorithm}"
    said = f"there is no {what} of {REGISTERED_MODELS[wanted.algorithm]} at {address}, so it cannot be used; " + (
        f"registered: {', '.join(existing)}" if existing else f"train one first with `dreamshard run{option}`"
    )
    if wanted.name == "champion" and existing:
        newest = next(iter(versions))
        said += f"; name one instead (--placer {newest}), or make it champion with `dreamshard promote {newest}`"
    return said


def read(settings: Settings) -> Listing:
    """The registry at present, with the versions of all algorithms; empty before the first version."""
    if settings.tracking_uri.startswith(LOCAL):
        path = Path(settings.tracking_uri.removeprefix(LOCAL))
        if not path.exists():
            return Listing(aliases={}, versions=())
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
                return Listing.merged({each: _from_database(database, each) for each in REGISTERED_MODELS})
        except sqlite3.Error:  # busy, or laid out by another MLflow, whose own client says what is wrong
            return _from_client(settings)
    if settings.tracking_uri.startswith(("http://", "https://")):
        from storage.mlflow_store.server_listing import from_server

        found = from_server(settings.tracking_uri, os.environ)
        if found is not None:
            return found
    return _from_client(settings)


def _from_database(database: sqlite3.Connection, algorithm: Algorithm) -> Listing:
    where = "name = ? and workspace = ?"
    key = (REGISTERED_MODELS[algorithm], _WORKSPACE)
    aliases = dict(database.execute(f"select alias, version from registered_model_aliases where {where}", key))
    rows = database.execute(
        "select version, run_id, creation_time, description from model_versions "
        f"where {where} and current_stage != 'Deleted_Internal' order by version desc",
        key,
    ).fetchall()
    tags: dict[int, dict[str, str]] = {}
    query = f"select version, key, value from model_version_tags where {where} order by key"
    for version, name, value in database.execute(query, key):
        tags.setdefault(version, {})[name] = value
    metrics: dict[str, dict[str, float]] = {}
    query = (
        "select run_uuid, key, value, is_nan from latest_metrics where run_uuid in "
        f"(select run_id from model_versions where {where}) order by key"
    )
    for run, name, value, is_nan in database.execute(query, key):
        metrics.setdefault(run, {})[name] = math.nan if is_nan else value
    entries = [
        VersionEntry(
            version=str(VersionReference(algorithm, str(version))),
            run=run or None,
            created_ms=created,
            description=description or "",
            tags=tags.get(version, {}),
            metrics=metrics.get(run, {}),
        )
        for version, run, created, description in rows
    ]
    return Listing(aliases=references(algorithm, aliases), versions=tuple(entries))


def references(algorithm: Algorithm, aliases: Mapping[str, str | int]) -> dict[str, str]:
    """MLflow's aliases and numbers of an algorithm's registered model, as references."""
    return {
        str(VersionReference(algorithm, alias)): str(VersionReference(algorithm, str(number)))
        for alias, number in aliases.items()
    }


def _from_client(settings: Settings) -> Listing:
    from storage.mlflow_store import registry

    listings: dict[Algorithm, Listing] = {}
    for algorithm in REGISTERED_MODELS:
        own = settings.of(algorithm)
        models = registry.all_versions(own)
        metrics = _metrics(settings, [model.run_id for model in models if model.run_id])
        entries = [
            VersionEntry(
                version=registry.reference_to(model),
                run=model.run_id or None,
                created_ms=model.creation_timestamp,
                description=model.description or "",
                tags=dict(sorted(model.tags.items())),
                metrics=metrics.get(model.run_id or "", {}),
            )
            for model in models
        ]
        aliases = {settings.of(algorithm).reference(alias): number for alias, number in registry.aliases(own).items()}
        listings[algorithm] = Listing(aliases=aliases, versions=tuple(entries))
    return Listing.merged(listings)


def _metrics(settings: Settings, runs: list[str]) -> dict[str, dict[str, float]]:
    """Newest metrics by run."""
    from storage.mlflow_store.runs import client

    tracking = client(settings)
    experiment = tracking.get_experiment_by_name(EXPERIMENT)
    found: dict[str, dict[str, float]] = {}
    if experiment is None:
        return found
    for start in range(0, len(runs), _PAGE):
        wanted = ", ".join(f"'{run}'" for run in runs[start : start + _PAGE])
        answer = tracking.search_runs([experiment.experiment_id], f"attributes.run_id IN ({wanted})", max_results=_PAGE)
        found |= {run.info.run_id: dict(sorted(run.data.metrics.items())) for run in answer}
    return found
