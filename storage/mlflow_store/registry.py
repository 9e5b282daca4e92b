"""Versions of placers in MLflow's registry: finding them, their aliases and tags, their files, and rows of them.

A model has one registered model per topology (`Training.registered_model`), with aliases of its own: `champion` is the
version in use, `challenger` the newest that did not beat it, `previous` the champion before. Algorithms compete for them. A
version is named by its URI (`models:/dreamshard.ads.a100-x8/3`), or by an alias or a number of a model's default topology.
The tags `reason`, `decided_by` and `decided_at` are of the last decision on a version; its description has all. Registered
models of others are left alone. Weights are safetensors and configurations JSON; nothing is pickled.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pyarrow as pa

from dreamshard import training
from dreamshard.costs import MeasuredOn
from dreamshard.training import TrainedPlacer
from dreamshard.training.config import Algorithm
from storage.filesystem import read_json, write_json
from storage.lake.parquet_files import datasets, read_parquet, write_parquet
from storage.mlflow_store import EXPERIMENT, LONGEST
from storage.run_records.trainings import ALIASES, PREFIX, Training, in_words, model_and_name, number_of, source_label
from storage.settings import LOCAL, Settings

Alias = Literal["champion", "challenger"]

REFERENCES = ("training", "evaluation", "dataset", "comparison")
"""Tags of a version that hold the key of something in the store which must not be removed while the version exists."""

MADE_OF = "made_of"
"""Tag of a version: its `Training` as JSON."""
MEASURED_ON = "measured_on"
"""Tag of a version: its `MeasuredOn` as JSON; absent if its placer does not say."""
PROVISIONAL = "provisional"
"""Tag of a champion whose evaluation does not show it to be cheaper than the best heuristic: its figures."""
REPLACED = "replaced_at"
"""Tag of a former champion: when a person put another version in its place."""
PINNED = "pinned"
"""Tag of a version that `prune` never removes; people set it."""
IDENTITY = "registry.json"
"""File of the store that tells its registry from others."""
DEFAULT = "default_since"
"""Tag of a registered model: since when its model's aliases and numbers alone are of it; the newest time counts."""
_REPORT = "\n\n"  # begins the report in a description, below the decisions, a line each
BY_EVALUATION = "evaluation"
"""Tag `decided_by` of a version that no person decided on."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Version:
    """A registered placer.

    Attributes:
        uri: names it for ever.
        run: MLflow's id of the run that it came from.
        model_id: MLflow's id of its files, which is unique across registries.
        created: when it was registered, UTC without a time zone.
        aliases: those that it has.
        is_default: whether an alias or a number alone of its model is of its topology.
    """

    uri: str
    run: str = ""
    model_id: str = ""
    created: datetime = datetime.min
    tags: Mapping[str, str]
    aliases: tuple[str, ...] = ()
    is_default: bool = False
    description: str = ""

    @property
    def number(self) -> int:
        """Its number in its registered model."""
        return number_of(self.uri)

    @property
    def registered_model(self) -> str:
        """Its registered model."""
        return model_and_name(self.uri)[0]

    @property
    def model(self) -> str:
        """The model that it places."""
        return self.made_of.model

    @property
    def name(self) -> str:
        """Its number, tables and start in a few words: `v4 tables.csv +3 -2, warm from v3`."""
        warm, tables = self.made_of.warm, [source_label(self.made_of.source), self.tags.get("table_diff", "")]
        start = f"warm from v{number_of(warm.version)}" if warm else "from scratch"
        return f"v{self.number} {' '.join(filter(None, tables))}, {start}"

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that trained it."""
        return self.made_of.recipe.training.algorithm

    @property
    def training(self) -> str:
        """Key of its training."""
        return self.tags["training"]

    @property
    def iteration(self) -> int:
        """Iteration of that training."""
        return int(self.tags["iteration"])

    @cached_property
    def made_of(self) -> Training:
        """The inputs of its training."""
        return Training.from_json(self.tags[MADE_OF])

    @property
    def measured_on(self) -> MeasuredOn | None:
        """Setting of its measurements; None if its placer does not say."""
        return MeasuredOn.model_validate_json(self.tags[MEASURED_ON]) if MEASURED_ON in self.tags else None

    @property
    def report(self) -> str:
        """The report by which it was decided on; empty before."""
        return self.description.partition(_REPORT)[2]

    @property
    def is_champion(self) -> bool:
        """Whether it is champion of its topology."""
        return "champion" in self.aliases

    @property
    def provisional(self) -> str:
        """Why it is a provisional champion, for people; empty if it is not."""
        figures = self.tags.get(PROVISIONAL) if self.is_champion else None
        return f"provisional: not yet shown to be cheaper than a heuristic ({figures})" if figures else ""

    @property
    def standing(self) -> str:
        """Its standing in words."""
        words = ", ".join(self.aliases)
        return f"{words}, provisional" if self.provisional else words

    def __str__(self) -> str:
        return in_words(self.uri)


def versions(settings: Settings) -> list[Version]:
    """All versions of all models, newest first."""
    if _is_absent(settings):
        return []
    registry, named = _client(settings), f"name LIKE '{PREFIX}%'"
    models = {model.name: model for model in registry.search_registered_models(named, max_results=1000)}
    ours = [entry for entry in registry.search_model_versions(named, max_results=100_000) if MADE_OF in entry.tags]
    of_model: dict[str, list[str]] = {}  # registered models by the model that their names hold
    for name in sorted({entry.name for entry in ours}, key=lambda name: models[name].tags.get(DEFAULT, "")):
        of_model.setdefault(name.split(".")[1], []).append(name)
    default = {names[-1] for names in of_model.values() if len(names) == 1 or DEFAULT in models[names[-1]].tags}
    return [
        Version(
            uri=f"models:/{entry.name}/{entry.version}",
            run=str(entry.run_id),
            model_id=str(entry.source).removeprefix("models:/"),
            created=datetime.fromtimestamp(entry.creation_timestamp / 1000, UTC).replace(tzinfo=None),
            tags=dict(entry.tags),
            aliases=tuple(alias for alias, n in models[entry.name].aliases.items() if str(n) == str(entry.version)),
            is_default=entry.name in default,
            description=entry.description or "",
        )
        for entry in sorted(ours, key=lambda entry: (-entry.creation_timestamp, -int(entry.version)))
    ]


def champion(settings: Settings, model: str = "") -> Version | None:
    """The champion of a registered model, or of the default topology of a model; None before the first.

    Args:
        model: name of either; empty for whichever model has the newest champion.
    """
    champions = [version for version in versions(settings) if version.is_champion]
    alike = (v for v in champions if v.registered_model == model or (v.is_default and model in ("", v.model)))
    return next(alike, None)


def find(settings: Settings, name: str, model: str = "") -> Version:
    """The version that a reference names at present.

    Args:
        model: that an alias or a number alone is of; empty for the only one.

    Raises:
        ValueError: there is none of that name, or several models have one; the message lists the existing ones.
    """
    (registered, wanted), known = model_and_name(name), versions(settings)
    matches = [
        v
        for v in known
        if (v.registered_model == registered if registered else v.is_default and model in ("", v.model))
        and wanted in (str(v.number), *v.aliases)
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        several = ", ".join(version.uri for version in matches)
        raise ValueError(f"{in_words(name)} is of several models; give --model, or one of {several}")
    what = f"{in_words(name)} yet" if wanted in ALIASES else f"version {name!r}"
    uris = [version.uri for version in known if model in ("", version.model)]
    advice = f"registered: {', '.join(uris)}" if uris else "train one with `dreamshard run`"
    raise ValueError(
        f"there is no {what}{f' of model {model}' if model else ''}; {advice} (registry: {settings.tracking_uri})"
    )


def tag(settings: Settings, version: str, tags: Mapping[str, Any]) -> None:
    """Set tags of a version; None removes one. Raises like `find`."""
    target, registry = find(settings, version), _client(settings)
    for name, value in tags.items():
        if value is not None:
            registry.set_model_version_tag(target.registered_model, str(target.number), name, str(value))
        elif name in target.tags:
            registry.delete_model_version_tag(target.registered_model, str(target.number), name)


def set_alias(
    settings: Settings, name: str, alias: Alias, reason: str, *, by: str = BY_EVALUATION, provisional: str = ""
) -> None:
    """Point an alias of the version's registered model at it; the caller holds the registry's lock.

    A new champion makes the old one `previous` and stops being the challenger. Its topology becomes its model's default if
    there was none, if a person chose it, or if its costs are measured and the other's are not. The alias moves last, so a
    reader who sees it finds the reason.

    Args:
        by: the user who decided.
        provisional: why a champion is provisional; empty if it is not.

    Raises:
        ValueError: there is no such version.
    """
    version, registry, by_hand = find(settings, name), _client(settings), by != BY_EVALUATION
    model, now = version.registered_model, f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S UTC}"
    decision: dict[str, str | None] = {"reason": reason, "decided_by": by, "decided_at": now}
    if alias == "champion":
        decision |= {PROVISIONAL: provisional or None, REPLACED: None}
    tag(settings, version.uri, decision)
    describe(settings, version.uri, decision=f"{now}, by {by}: {alias}, {reason}")
    if alias == "champion":
        former, default = champion(settings, model), champion(settings, version.model) or version
        if former is not None and former.uri != version.uri:
            registry.set_registered_model_alias(model, "previous", str(former.number))
            tag(settings, former.uri, {REPLACED: now} if by_hand else {})
            describe(settings, former.uri, decision=f"{now}, by {by}: replaced by version {version.number}, {reason}")
        if "challenger" in version.aliases:
            registry.delete_registered_model_alias(model, "challenger")
        is_better = version.made_of.topology.is_measured and not default.made_of.topology.is_measured
        if by_hand or is_better or default.registered_model == model:
            registry.set_registered_model_tag(model, DEFAULT, datetime.now(UTC).isoformat())
    registry.set_registered_model_alias(model, alias, str(version.number))


def describe(settings: Settings, name: str, *, decision: str = "", report: str = "") -> None:
    """Add a decision to the description of a version, or replace the report below all decisions."""
    version = find(settings, name)
    decided = [version.description.partition(_REPORT)[0], decision and f"- {' '.join(decision.split())}"]
    text = ("\n".join(filter(None, decided)) + _REPORT + (report or version.report))[:LONGEST]
    _client(settings).update_model_version(version.registered_model, str(version.number), text)


def make_champion(settings: Settings, name: str, reason: str, by: str, model: str = "") -> dict[str, Any]:
    """Make a version champion regardless of its evaluation; `previous` undoes that.

    Args:
        reason: recorded on the version, like the user `by`.
        model: as for `find`.

    Returns:
        The version, the former champion of its topology (the same if nothing changed) and the topology.

    Raises:
        ValueError: there is no such version, or it cannot place; nothing changes.
    """
    version = find(settings, name, model)
    topology, former = version.made_of.topology, champion(settings, version.registered_model)
    if not (version.is_champion and version.is_default):
        load_placer(version.uri, settings)  # a version that cannot be read must not come into use
        set_alias(settings, version.uri, "champion", reason, by=by)
    return {"version": version.uri, "former": former and former.uri, "model": version.model, "topology": str(topology)}


def referenced_keys(known: Iterable[Version]) -> frozenset[str]:
    """The values of the tags `REFERENCES` of versions."""
    return frozenset(version.tags[name] for version in known for name in REFERENCES if name in version.tags)


def remove(settings: Settings, version: Version) -> None:
    """Remove a version; MLflow keeps its files until `mlflow gc`."""
    _client(settings).delete_model_version(version.registered_model, str(version.number))
    _client(settings).delete_logged_model(version.model_id)


def check_identity(settings: Settings) -> None:
    """Check that the registry is the one whose versions the store holds the files of; raises a ValueError otherwise."""
    path, identity = settings.store_root / IDENTITY, _identity(settings)
    if path.exists() and read_json(path) != identity:
        raise ValueError(
            f"the registry {settings.tracking_uri} is not that of the store {settings.store_root}; point MLFLOW_TRACKING_URI "
            "at that one, or bring its database back"
        )


def _identity(settings: Settings) -> int | None:
    """When the experiment was created, in milliseconds; None before."""
    experiment = None if _is_absent(settings) else _client(settings).get_experiment_by_name(EXPERIMENT)
    return None if experiment is None else experiment.creation_time


def _client(settings: Settings) -> Any:
    """MLflow's client. MLflow is optional, and takes seconds to import."""
    from storage.mlflow_store.runs import client

    return client(settings)


def _is_absent(settings: Settings) -> bool:
    """Whether the first run has yet to make the database."""
    address = settings.tracking_uri
    return address.startswith(LOCAL) and not Path(address.removeprefix(LOCAL)).exists()


def load_placer(name: str = "champion", settings: Settings | None = None) -> TrainedPlacer:
    """The placer of a version.

    Args:
        name: `champion`, `challenger`, `previous`, a number, or a URI such as `models:/dreamshard.ads.a100-x8/3`.
        settings: addresses of the registry; by default those of this process's environment, and then a provisional champion
            is warned of.

    Raises:
        ValueError: there is none of that name (the message lists the existing ones), or its files are lost or damaged.
    """
    home = settings or Settings.from_environment()
    version, server = find(home, name), home.tracking_uri
    from mlflow.artifacts import download_artifacts

    with TemporaryDirectory() as scratch:
        try:
            folder = download_artifacts(
                f"{version.uri}/artifacts/placer", dst_path=scratch, tracking_uri=server, registry_uri=server
            )
        except Exception as error:  # every store has errors of its own
            reason = str(error).rpartition("\n")[2]  # the lines before it say which files
            raise ValueError(
                f"the files of {version.uri} cannot be read ({reason}); restore {version.model_id}, or use another version"
            ) from error
        placer = training.load_placer(Path(folder))
    if settings is None and version.provisional:
        logger.warning("%s is %s", version.uri, version.provisional)
    return placer


def version_rows(settings: Settings, known: list[Version]) -> list[dict[str, Any]]:
    """Versions side by side.

    Returns:
        Of each: its reference, standing (in words), the columns of the view `versions`, and every metric by name.
    """
    from storage.mlflow_store.runs import data_of_runs

    data = data_of_runs(settings, [version.run for version in known])
    return [_row(version, *data.get(version.run, ({}, {}))) for version in known]


def version_in_full(settings: Settings, name: str, model: str = "") -> dict[str, Any]:
    """One version in full: the columns of `version_rows`, all other tags, and its description.

    Args:
        name: a reference to it, with its `model` as for `find`.

    Raises:
        ValueError: there is no such version; the message lists the existing ones.
    """
    version = find(settings, name, model)
    (row,) = version_rows(settings, [version])
    tags = {name: value for name, value in sorted(version.tags.items()) if name not in (*row, MADE_OF)}
    return row | {"tags": tags, "description": version.description}


def write_versions(settings: Settings) -> None:
    """Write the registry to the lake as it is now, after a version or an alias changed; the caller holds its lock."""
    if not (settings.store_root / IDENTITY).exists():
        write_json(settings.store_root / IDENTITY, _identity(settings))
    path = settings.lake_root / "versions" / "versions.parquet"
    table = pa.Table.from_pylist(version_rows(settings, versions(settings)[::-1]), schema=datasets()["versions"])
    if not path.exists() or read_parquet(path) != table:
        write_parquet(path, table)


def _row(version: Version, params: Mapping[str, str], metrics: Mapping[str, float]) -> dict[str, Any]:
    text, columns = {**params, **version.tags}, dict[str, Any]()
    for field in datasets()["versions"]:
        value = metrics.get(field.name) if pa.types.is_floating(field.type) else text.get(field.name) or None
        columns[field.name] = int(value) if value and pa.types.is_integer(field.type) else value
    return {
        "reference": version.uri,
        "standing": version.standing,
        **columns,
        "version": version.number,
        **{name: getattr(version, name) for name in ("registered_model", "name", "is_default")},
        "aliases": ", ".join(version.aliases),
        "created_at": version.created.replace(microsecond=0),
        **version.made_of.facts,
        "mlflow_run": version.run,
        **dict(sorted(metrics.items())),
    }
