"""Versions of placers in MLflow's registry: finding them, their tags, and their files.

An algorithm has one registered model per topology (`Topology.registered_model`), with aliases of its own: `champion` is
the version in use, `challenger` the newest that did not beat it, `previous` the champion before. Functions return versions
as URIs (`models:/dreamshard-a100-8/3`) and also take an alias or a number, of the algorithm's default model. Weights are
safetensors and configurations JSON; nothing is pickled.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow.artifacts
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from dreamshard import training
from dreamshard.search import DreamShardPlacer
from dreamshard.training import TrainedPlacer
from dreamshard.training.config import ALGORITHMS, DEFAULT_ALGORITHM, Algorithm
from storage.filesystem import failures
from storage.mlflow_store.runs import MODEL_TRAINING, client
from storage.mlflow_store.topology import Topology
from storage.mlflow_store.version_names import ALIASES, VersionReference
from storage.settings import Settings

REFERENCES = ("training", "evaluation", "dataset", "comparison", "reference_evaluation", "reference_dataset")
"""Tags of a version that hold the key of something in the store which must not be removed while the version exists."""

PROVISIONAL = "provisional"
"""Tag of a champion whose evaluation does not show it to be cheaper than the best rule of thumb: its figures."""
TRYOUT = "tryout"
"""Tag of a version: `yes` if it was run without promoting; absent otherwise."""
DEFAULT = "default"
"""Tag of a registered model: `yes` for the one that an alias or a number alone is of."""

_ABOUT: dict[Algorithm, str] = {
    "dreamshard": "Places embedding tables on devices.",
    "paper": "Places embedding tables on devices as DreamShard was published (arXiv 2210.02023): the policy alone.",
    "autoshard": "Places embedding tables on devices as AutoShard was published (arXiv 2208.06399): balances compute.",
}
logger = logging.getLogger(__name__)
_MOST_VERSIONS = 100_000
_MAX_DESCRIPTION = 5000  # characters that MLflow's database accepts


@dataclass(frozen=True, kw_only=True)
class Line:
    """The versions of one algorithm for one topology: a registered model.

    Attributes:
        aliases: alias to version.
        is_default: whether an alias or a number alone is of this model.
    """

    name: str
    topology: Topology
    aliases: Mapping[str, str]
    is_default: bool

    @property
    def champion(self) -> str | None:
        """The version in use."""
        return self.aliases.get("champion")


def lines(settings: Settings) -> list[Line]:
    """All registered models of the algorithm, the default one first."""
    if not settings.has_registry:
        return []
    found = client(settings).search_registered_models(f"name LIKE '{settings.algorithm}-%'", max_results=1000)
    known = [
        Line(
            name=model.name,
            topology=Topology.from_json(model.tags["topology"]),
            aliases={alias: f"models:/{model.name}/{number}" for alias, number in model.aliases.items()},
            is_default=DEFAULT in model.tags or len(found) == 1,
        )
        for model in found
    ]
    return sorted(known, key=lambda line: (not line.is_default, line.name))


def line_of(settings: Settings, version: str) -> Line:
    """The registered model of a version."""
    wanted = VersionReference.of(version)
    return next(line for line in lines(settings.of(wanted.algorithm)) if line.name == wanted.model)


def champions(settings: Settings) -> set[str]:
    """The algorithm's champions of all topologies."""
    return {line.champion for line in lines(settings) if line.champion is not None}


def champion(settings: Settings, topology: Topology | None = None) -> str | None:
    """The algorithm's champion of a topology, by default of the default model; None before the first."""
    for line in lines(settings):
        if line.is_default if topology is None else line.topology == topology:
            return line.champion
    return None


def find(settings: Settings, name: str) -> ModelVersion:
    """The version that a reference names at present.

    Raises:
        ValueError: there is none of that name; the message lists the existing ones.
    """
    wanted = VersionReference.of(name)
    model, number = wanted.model, wanted.name
    if not (model and wanted.is_number):
        known = lines(settings.of(wanted.algorithm) if model else settings)
        line = next((line for line in known if (line.name == model if model else line.is_default)), None)
        model = "" if line is None else line.name
        number = VersionReference.of(line.aliases[number]).name if line and number in line.aliases else number
    if model:
        try:
            return client(settings).get_model_version(model, number)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
    what = f"{wanted.in_words} yet" if wanted.name in ALIASES else f"version {name!r}"
    versions = [uri for algorithm in ALGORITHMS for uri in tags_by_version(settings.of(algorithm))]
    option = "" if settings.algorithm == DEFAULT_ALGORITHM else f" --algorithm {settings.algorithm}"
    advice = f"registered: {', '.join(versions)}" if versions else f"train one with `dreamshard run{option}`"
    raise ValueError(f"there is no {what} at {settings.tracking_uri}; {advice}")


def uri_of(version: ModelVersion) -> str:
    """The reference to a version of MLflow's."""
    return f"models:/{version.name}/{version.version}"


def ensure_model(settings: Settings, topology: Topology) -> str:
    """Create the algorithm's registered model of a topology, unless it exists; returns its name."""
    name, tags = topology.registered_model(settings.algorithm), {"topology": topology.to_json()}
    about = f"{_ABOUT[settings.algorithm]} Costs are of {topology}."
    try:
        client(settings).create_registered_model(name, tags, about)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return name


def resolve(settings: Settings, name: str) -> str:
    """The version with its number that a reference names at present; raises like `find`."""
    return uri_of(find(settings, name))


def version_tags(settings: Settings, name: str) -> dict[str, str]:
    """Tags of a version or alias; raises like `find`."""
    return dict(find(settings, name).tags)


def run_of(settings: Settings, name: str) -> str:
    """The run that a version or alias came from; raises like `find`."""
    return str(find(settings, name).run_id)


def model_of(settings: Settings, name: str) -> str:
    """MLflow's id of a version's files, which is unique across registries; raises like `find`."""
    return str(find(settings, name).source).removeprefix("models:/")


def tag(settings: Settings, version: str, tags: Mapping[str, Any]) -> None:
    """Set tags of a version; None removes one."""
    model = find(settings, version)
    for name, value in tags.items():
        if value is not None:
            client(settings).set_model_version_tag(model.name, str(model.version), name, str(value))
        elif name in model.tags:
            client(settings).delete_model_version_tag(model.name, str(model.version), name)


def describe(settings: Settings, version: str, text: str) -> None:
    """Set the description (Markdown) of a version."""
    model = find(settings, version)
    client(settings).update_model_version(model.name, str(model.version), description=text[:_MAX_DESCRIPTION])


def version_link(version: str) -> str:
    """Link to a version on MLflow's pages, relative to the address of the server."""
    reference = VersionReference.of(version)
    return f"#/models/{reference.model}/versions/{reference.name}?{MODEL_TRAINING}"


def all_versions(settings: Settings) -> list[ModelVersion]:
    """Of the algorithm, newest first; without aliases, which MLflow leaves out of search results."""
    if not settings.has_registry:
        return []
    wanted = f"name LIKE '{settings.algorithm}-%'"
    versions = client(settings).search_model_versions(wanted, max_results=_MOST_VERSIONS)
    return sorted(versions, key=lambda version: (-version.creation_timestamp, -int(version.version)))


def tags_by_version(settings: Settings) -> dict[str, dict[str, str]]:
    """The tags of every version of the algorithm, newest first."""
    return {uri_of(version): dict(version.tags) for version in all_versions(settings)}


def find_version(settings: Settings, tags: Mapping[str, Any]) -> str | None:
    """The newest version of the algorithm that carries all of `tags`, or None."""
    wanted = {(name, str(value)) for name, value in tags.items()}
    return next((version for version, own in tags_by_version(settings).items() if wanted <= own.items()), None)


def referenced_keys(settings: Settings) -> frozenset[str]:
    """The values of the tags `REFERENCES` of all versions, of all algorithms."""
    versions = [tags for algorithm in ALGORITHMS for tags in tags_by_version(settings.of(algorithm)).values()]
    return frozenset(tags[name] for tags in versions for name in REFERENCES if name in tags)


def provisional_note(tags: Mapping[str, str]) -> str:
    """Why a champion is provisional, for people; empty if it is not."""
    figures = tags.get(PROVISIONAL)
    return f"provisional: not yet shown to be cheaper than a rule of thumb ({figures})" if figures else ""


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
    version = find(home, name)
    with TemporaryDirectory() as scratch:
        try:
            uri, server = f"{uri_of(version)}/artifacts/placer", home.tracking_uri
            folder = mlflow.artifacts.download_artifacts(
                uri, dst_path=scratch, tracking_uri=server, registry_uri=server
            )
        except failures(MlflowException) as error:
            raise ValueError(
                f"the files of {uri_of(version)} cannot be read ({error}); restore {version.source}, or use another version"
            ) from error
        placer = training.load_placer(Path(folder))
    if settings is None and (note := provisional_note(version.tags)):
        logger.warning("%s is %s", uri_of(version), note)
    return placer


def load_predictor(name: str, settings: Settings) -> DreamShardPlacer:
    """The placer of a version that predicts what steps cost; raises like `load_placer`.

    Raises:
        ValueError: also if it is one of AutoShard, which predicts compute only.
    """
    placer = load_placer(name, settings)
    if not isinstance(placer, DreamShardPlacer):
        raise ValueError(
            f"{name} is a version of {placer.name}, which predicts compute and no communication, so it cannot predict what "
            "steps cost; name a version of another algorithm"
        )
    return placer
