"""Versions of placers in MLflow's registry: finding them, their aliases and tags, their files, and rows of them.

An algorithm has one registered model per topology (`Topology.registered_model`), with aliases of its own: `champion` is
the version in use, `challenger` the newest that did not beat it, `previous` the champion before. A version is named by its
URI (`models:/dreamshard-a100-8/3`), or by an alias or a number of the algorithm's default model. The tags `reason`,
`decided_by` and `decided_at` are of the last decision on a version. Weights are safetensors and configurations JSON;
nothing is pickled.
"""

import logging
from collections.abc import Mapping
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
from dreamshard.training.config import ALGORITHMS, DEFAULT_ALGORITHM, Algorithm
from storage.lake.parquet_files import read_parquet, write_parquet
from storage.lake.schemas import datasets
from storage.run_records.trainings import Topology, Training, source_label
from storage.settings import LOCAL, Settings
from storage.version_names import ALIASES, algorithm_of, in_words, model_and_name, number_of

Alias = Literal["champion", "challenger"]

REFERENCES = ("training", "evaluation", "dataset", "comparison")
"""Tags of a version that hold the key of something in the store which must not be removed while the version exists."""

MADE_OF = "made_of"
"""Tag of a version: its `Training` as JSON."""
MEASURED_ON = "measured_on"
"""Tag of a version: its `MeasuredOn` as JSON; absent if its placer does not say."""
PROVISIONAL = "provisional"
"""Tag of a champion whose evaluation does not show it to be cheaper than the best rule of thumb: its figures."""
TRYOUT = "tryout"
"""Tag of a version: `yes` if it was run without promoting; absent otherwise."""
REPLACED = "replaced_at"
"""Tag of a former champion: when a person put another version in its place."""
DEFAULT = "default_since"
"""Tag of a registered model: the time since which an alias or a number alone is of it; the newest time counts."""
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
        is_default: whether an alias or a number alone is of its registered model.
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
    def model(self) -> str:
        """Its registered model."""
        return model_and_name(self.uri)[0]

    @property
    def name(self) -> str:
        """Its number, tables and start in a few words: `v4 tables.csv +3 -2, warm from v3`."""
        warm, tables = self.made_of.warm, [source_label(self.made_of.source), self.tags.get("table_diff", "")]
        start = f"warm from v{number_of(warm.version)}" if warm else "from scratch"
        return f"v{self.number} {' '.join(filter(None, tables))}, {start}"

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that trained it."""
        return algorithm_of(self.uri)

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
    def is_champion(self) -> bool:
        """Whether it is champion of its topology."""
        return "champion" in self.aliases

    @property
    def is_tryout(self) -> bool:
        """Whether it was run without promoting, so that no training continues from it automatically."""
        return TRYOUT in self.tags

    @property
    def provisional(self) -> str:
        """Why it is a provisional champion, for people; empty if it is not."""
        figures = self.tags.get(PROVISIONAL) if self.is_champion else None
        return f"provisional: not yet shown to be cheaper than a rule of thumb ({figures})" if figures else ""

    @property
    def standing(self) -> str:
        """Its standing in words."""
        words = ", ".join(self.aliases) or ("try-out" if self.is_tryout else "")
        return f"{words}, provisional" if self.provisional else words

    def __str__(self) -> str:
        return in_words(self.uri)


def versions(settings: Settings) -> list[Version]:
    """All versions of the algorithm, newest first."""
    address = settings.tracking_uri
    if address.startswith(LOCAL) and not Path(address.removeprefix(LOCAL)).exists():
        return []  # before the first run, which makes the database
    from storage.mlflow_store.runs import client  # optional, as in the functions below

    registry, named = client(settings), f"name LIKE '{settings.algorithm}-%'"
    models = {model.name: model for model in registry.search_registered_models(named, max_results=1000)}
    default = max(models, key=lambda name: models[name].tags.get(DEFAULT, ""), default="")
    has_default = len(models) == 1 or (default and DEFAULT in models[default].tags)
    found = registry.search_model_versions(named, max_results=100_000)
    return [
        Version(
            uri=f"models:/{each.name}/{each.version}",
            run=str(each.run_id),
            model_id=str(each.source).removeprefix("models:/"),
            created=datetime.fromtimestamp(each.creation_timestamp / 1000, UTC).replace(tzinfo=None),
            tags=dict(each.tags),
            aliases=tuple(alias for alias, n in models[each.name].aliases.items() if str(n) == str(each.version)),
            is_default=bool(has_default) and each.name == default,
            description=each.description or "",
        )
        for each in sorted(found, key=lambda each: (-each.creation_timestamp, -int(each.version)))
    ]


def all_versions(settings: Settings) -> list[Version]:
    """All versions of all algorithms, of each algorithm newest first."""
    return [version for algorithm in ALGORITHMS for version in versions(settings.of(algorithm))]


def champion(settings: Settings, topology: Topology | None = None) -> Version | None:
    """The algorithm's champion of a topology, by default of the default model; None before the first."""
    model = topology and topology.registered_model(settings.algorithm)
    champions = (version for version in versions(settings) if version.is_champion)
    return next((each for each in champions if (each.model == model if model else each.is_default)), None)


def find(settings: Settings, name: str) -> Version:
    """The version that a reference names at present.

    Raises:
        ValueError: there is none of that name; the message lists the existing ones.
    """
    model, wanted = model_and_name(name)
    for version in versions(settings.of(algorithm_of(name)) if model else settings):
        is_of_model = version.model == model if model else version.is_default
        if is_of_model and wanted in (str(version.number), *version.aliases):
            return version
    what = f"{in_words(name)} yet" if wanted in ALIASES else f"version {name!r}"
    known = [version.uri for version in all_versions(settings)]
    option = "" if settings.algorithm == DEFAULT_ALGORITHM else f" --algorithm {settings.algorithm}"
    advice = f"registered: {', '.join(known)}" if known else f"train one with `dreamshard run{option}`"
    raise ValueError(f"there is no {what} at {settings.tracking_uri}; {advice}")


def tag(settings: Settings, version: str, tags: Mapping[str, Any]) -> None:
    """Set tags of a version; None removes one. Raises like `find`."""
    from storage.mlflow_store.runs import client

    found, registry = find(settings, version), client(settings)
    for name, value in tags.items():
        if value is not None:
            registry.set_model_version_tag(found.model, str(found.number), name, str(value))
        elif name in found.tags:
            registry.delete_model_version_tag(found.model, str(found.number), name)


def set_alias(
    settings: Settings, name: str, alias: Alias, reason: str, *, by: str = BY_EVALUATION, provisional: str = ""
) -> None:
    """Point an alias of the version's registered model at it; the caller holds the registry's lock.

    A new champion makes the old one `previous` and stops being the challenger. It takes over as what an alias or a number
    alone is of if there was none, if a person chose it, or if its costs are measured and the other's are not. The alias
    moves last, so a reader who sees it finds the reason.

    Args:
        by: the user who decided.
        provisional: why a champion is provisional; empty if it is not.

    Raises:
        ValueError: there is no such version.
    """
    from storage.mlflow_store.runs import client

    version, registry, by_hand = find(settings, name), client(settings), by != BY_EVALUATION
    settings, now = settings.of(version.algorithm), f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S UTC}"
    decision = {"reason": reason, "decided_by": by, "decided_at": now, TRYOUT: None}
    if alias == "champion":
        decision |= {PROVISIONAL: provisional or None, REPLACED: None}
    tag(settings, version.uri, decision)
    if alias == "champion":
        former, default = champion(settings, version.made_of.topology), champion(settings) or version
        if former is not None and former.uri != version.uri:
            registry.set_registered_model_alias(version.model, "previous", str(former.number))
            tag(settings, former.uri, {REPLACED: now} if by_hand else {})
        if "challenger" in version.aliases:
            registry.delete_registered_model_alias(version.model, "challenger")
        is_better = version.made_of.topology.is_measured and not default.made_of.topology.is_measured
        if by_hand or is_better or default.model == version.model:
            registry.set_registered_model_tag(version.model, DEFAULT, datetime.now(UTC).isoformat())
    registry.set_registered_model_alias(version.model, alias, str(version.number))


def make_champion(settings: Settings, name: str, reason: str, by: str) -> dict[str, Any]:
    """Make a version champion regardless of its evaluation; `previous` undoes that.

    Args:
        reason: recorded on the version, like the user `by`.

    Returns:
        The version, the former champion of its topology (the same if nothing changed) and the topology.

    Raises:
        ValueError: there is no such version, or it cannot place; nothing changes.
    """
    version = find(settings, name)
    topology = version.made_of.topology
    former = champion(settings.of(version.algorithm), topology)
    if not (version.is_champion and version.is_default):
        load_placer(version.uri, settings)  # a version that cannot be read must not come into use
        set_alias(settings, version.uri, "champion", reason, by=by)
    return {"version": version.uri, "former": former and former.uri, "topology": str(topology)}


def referenced_keys(settings: Settings) -> frozenset[str]:
    """The values of the tags `REFERENCES` of all versions, of all algorithms."""
    found = all_versions(settings)
    return frozenset(version.tags[name] for version in found for name in REFERENCES if name in version.tags)


def load_placer(name: str = "champion", settings: Settings | None = None) -> TrainedPlacer:
    """The placer of a version.

    Args:
        name: `champion`, `challenger`, `previous`, a number, or a URI such as `models:/dreamshard-a100-8/3`.
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


def version_rows(settings: Settings) -> list[dict[str, Any]]:
    """All versions of all algorithms side by side, newest first.

    Returns:
        Of each: its reference, standing (in words), the columns of the view `versions`, and every metric by name.
    """
    rows = _rows(settings, all_versions(settings))
    rows.sort(key=lambda row: row["created_at"], reverse=True)  # stable: of one second, the highest number first
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def version_in_full(settings: Settings, name: str) -> dict[str, Any]:
    """One version in full: the columns of `version_rows`, all other tags, and its description.

    Args:
        name: a reference to it.

    Raises:
        ValueError: there is no such version; the message lists the existing ones.
    """
    found = find(settings, name)
    (row,) = _rows(settings, [found])
    tags = {name: value for name, value in sorted(found.tags.items()) if name not in (*row, MADE_OF)}
    return row | {"tags": tags, "description": found.description}


def write_versions(settings: Settings) -> None:
    """Write the registry to the lake as it is now, after a version or an alias changed; the caller holds its lock."""
    path = settings.lake_root / "versions" / "versions.parquet"
    table = pa.Table.from_pylist(version_rows(settings)[::-1], schema=datasets()["versions"])
    if not path.exists() or read_parquet(path) != table:
        write_parquet(path, table)


def _rows(settings: Settings, known: list[Version]) -> list[dict[str, Any]]:
    from storage.mlflow_store.runs import data_of_runs

    data = data_of_runs(settings, [each.run for each in known])
    return [_row(each, *data.get(each.run, ({}, {}))) for each in known]


def _row(version: Version, params: Mapping[str, str], run_metrics: Mapping[str, float]) -> dict[str, Any]:
    from storage.mlflow_store.runs import of_tasks

    text = {**params, **version.tags}
    metrics = {name: value for name, value in run_metrics.items() if "/" not in name}
    prefix = of_tasks(text.get("tasks", ""))
    measured = {name.removeprefix(prefix): value for name, value in run_metrics.items() if name.startswith(prefix)}
    metrics |= measured if prefix else {}
    columns: dict[str, Any] = {}
    for field in datasets()["versions"]:
        value = text.get(field.name) or None
        if pa.types.is_floating(field.type):
            columns[field.name] = metrics.get(field.name, metrics.get(f"eval_{field.name}"))
        else:
            columns[field.name] = int(value) if value and pa.types.is_integer(field.type) else value
    return {
        "reference": version.uri,
        "standing": version.standing,
        **columns,
        "version": version.number,
        **{name: getattr(version, name) for name in ("model", "algorithm", "name", "is_default")},
        "aliases": ", ".join(version.aliases),
        "created_at": version.created.replace(microsecond=0),
        **version.made_of.facts,
        "mlflow_run": version.run,
        **dict(sorted(metrics.items())),
        "prediction_error": metrics.get("eval_predicted_mape"),
    }
