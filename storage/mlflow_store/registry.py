"""Versions of placers in MLflow's registry: finding them, their tags, and their files.

Each algorithm has a registered model. A version is named by a reference (`dreamshard.names`): `3`, `paper:3`;
what names no version is of the algorithm of the settings. Aliases of each model: `champion` is the version in use,
`challenger` the newest that did not beat it, `previous` the champion before this one; `alias_changes` moves them. Weights are
safetensors and configurations JSON; nothing is pickled.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow.artifacts
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from dreamshard import training
from dreamshard.names import ALIASES as ALIASES
from dreamshard.names import DEFAULT_ALGORITHM, Algorithm, VersionReference
from dreamshard.search import DreamShardPlacer
from dreamshard.training import TrainedPlacer
from storage.filesystem import failures
from storage.mlflow_store.experiment import MODEL_TRAINING
from storage.mlflow_store.runs import client
from storage.mlflow_store.standings import CHAMPION_OF, provisional_note
from storage.settings import REGISTERED_MODELS, Settings

REFERENCES = ("training", "evaluation", "dataset", "comparison", "reference_evaluation", "reference_dataset")
"""Tags of a version that hold the key of something in the store which must not be removed while the version exists."""

_ABOUT: dict[Algorithm, str] = {
    "dreamshard": "Places embedding tables on devices.",
    "paper": "Places embedding tables on devices as DreamShard was published (arXiv 2210.02023): the policy alone.",
    "autoshard": "Places embedding tables on devices as AutoShard was published (arXiv 2208.06399): balances compute.",
}
logger = logging.getLogger(__name__)
_MOST_VERSIONS = 100_000
_MAX_DESCRIPTION = 5000  # characters that MLflow's database accepts


def aliases(settings: Settings) -> dict[str, str]:
    """Alias to version, of the algorithm; empty while nothing is registered."""
    try:
        model = client(settings).get_registered_model(settings.registered_model)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return {}
    return {alias: settings.reference(str(version)) for alias, version in model.aliases.items()}


def champion(settings: Settings) -> str | None:
    """The version of the algorithm in use, or None before the first."""
    return aliases(settings).get("champion")


def find(settings: Settings, name: str) -> ModelVersion:
    """The version that a reference names at present, of whatever algorithm.

    Raises:
        ValueError: there is none of that name; the message lists the existing ones.
    """
    wanted = VersionReference.of(name)
    own = settings.of(wanted.algorithm)
    known = aliases(own)
    number = VersionReference.of(known.get(wanted.name, str(wanted)))
    if number.is_number:
        try:
            return client(own).get_model_version(*model_and_number(str(number)))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
    raise ValueError(_missing(wanted, own.tracking_uri, known, tags_by_version(own)))


def _missing(
    wanted: VersionReference, address: str, aliases: Mapping[str, str], versions: Mapping[str, Mapping[str, str]]
) -> str:
    """Say that there is no such version, and which exist.

    Args:
        wanted: the version.
        address: of the registry.
        aliases: alias to version, of its algorithm.
        versions: tags of each version of its algorithm.
    """
    existing = []
    for version, tags in versions.items():
        named = [alias for alias, number in aliases.items() if number == version]
        named += [f"champion of {tags[CHAMPION_OF]}"] if CHAMPION_OF in tags else []
        existing.append(f"version {version}" + (f" ({', '.join(named)})" if named else ""))
    what = f"{wanted.name} yet" if wanted.name in ALIASES else f"version {str(wanted)!r}"
    option = "" if wanted.algorithm == DEFAULT_ALGORITHM else f" --algorithm {wanted.algorithm}"
    advice = f"registered: {', '.join(existing)}" if existing else f"train one with `dreamshard run{option}`"
    if wanted.name == "champion" and existing:
        newest = next(iter(versions))
        advice += f"; name one (--placer {newest}), or make it champion with `dreamshard promote {newest}`"
    return f"there is no {what} of {REGISTERED_MODELS[wanted.algorithm]} at {address}; {advice}"


def model_and_number(version: str) -> tuple[str, str]:
    """The registered model and the number that MLflow knows a version by."""
    reference = VersionReference.of(version)
    return REGISTERED_MODELS[reference.algorithm], reference.name


def reference_to(version: ModelVersion) -> str:
    """The reference to a version of MLflow's."""
    algorithms = {model: algorithm for algorithm, model in REGISTERED_MODELS.items()}
    return str(VersionReference(algorithms[version.name], str(version.version)))


def ensure_model(settings: Settings) -> None:
    """Create the algorithm's registered model, unless it exists."""
    try:
        client(settings).create_registered_model(settings.registered_model, description=_ABOUT[settings.algorithm])
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def resolve(settings: Settings, name: str) -> str:
    """The version with its number that a reference names at present; raises like `find`."""
    return reference_to(find(settings, name))


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
    """Set tags of a version."""
    for name, value in tags.items():
        client(settings).set_model_version_tag(*model_and_number(version), name, str(value))


def untag(settings: Settings, version: str, name: str) -> None:
    """Remove a tag of a version, which has it."""
    client(settings).delete_model_version_tag(*model_and_number(version), name)


def describe(settings: Settings, version: str, text: str) -> None:
    """Put `text` (Markdown) below the first line of a version's description, which states the last decision."""
    decision = (find(settings, version).description or "").partition("\n\n")[0]
    described = f"{decision}\n\n{text}"[:_MAX_DESCRIPTION]
    client(settings).update_model_version(*model_and_number(version), description=described)


def version_link(version: str) -> str:
    """Link to a version on MLflow's pages, relative to the address of the server."""
    model, number = model_and_number(version)
    return f"#/models/{model}/versions/{number}?{MODEL_TRAINING}"


def all_versions(settings: Settings) -> list[ModelVersion]:
    """Of the algorithm, newest first; without aliases, which MLflow leaves out of search results."""
    wanted = f"name='{settings.registered_model}'"
    versions = client(settings).search_model_versions(wanted, max_results=_MOST_VERSIONS)
    return sorted(versions, key=lambda version: -int(version.version))


def tags_by_version(settings: Settings) -> dict[str, dict[str, str]]:
    """The tags of every version of the algorithm, newest first."""
    return {reference_to(version): dict(version.tags) for version in all_versions(settings)}


def find_version(settings: Settings, tags: Mapping[str, Any]) -> str | None:
    """The newest version of the algorithm that carries all of `tags`, or None."""
    wanted = {(name, str(value)) for name, value in tags.items()}
    matching = [number for number, own in tags_by_version(settings).items() if wanted <= own.items()]
    return matching[0] if matching else None


def referenced_keys(settings: Settings) -> frozenset[str]:
    """The values of the tags `REFERENCES` of all versions, of all algorithms."""
    versions = [tags for algorithm in REGISTERED_MODELS for tags in tags_by_version(settings.of(algorithm)).values()]
    return frozenset(tags[name] for tags in versions for name in REFERENCES if name in tags)


def load_placer(name: str = "champion", settings: Settings | None = None) -> TrainedPlacer:
    """The placer of an alias or version.

    Args:
        name: `champion`, `challenger`, `previous`, a version's number, or one of these of another algorithm (`paper:3`).
        settings: addresses of the registry; by default those of this process's environment, and then a provisional champion
            is warned of.

    Raises:
        ValueError: there is none of that name (the message lists the existing ones), or its files are lost or damaged.
    """
    home = settings or Settings.from_environment()
    version = find(home, name)
    with _download(home, version, "artifacts/placer") as folder:
        placer = training.load_placer(folder)
    if settings is None and (note := provisional_note(version.tags)):
        logger.warning("version %s is %s", reference_to(version), note)
    return placer


def load_predictor(name: str, settings: Settings) -> DreamShardPlacer:
    """The placer of an alias or version that predicts what steps cost; raises like `load_placer`.

    Raises:
        ValueError: also if it is one of AutoShard, which predicts compute only.
    """
    placer = load_placer(name, settings)
    if not isinstance(placer, DreamShardPlacer):
        raise ValueError(
            f"version {name} is one of {placer.name}, which predicts compute and no communication, so it cannot predict what "
            "steps cost; name a version of another algorithm"
        )
    return placer


@contextmanager
def _download(settings: Settings, version: ModelVersion, part: str) -> Iterator[Path]:
    """A local copy of a file or folder of a version while the block runs.

    Raises:
        ValueError: it is lost or cannot be reached.
    """
    tracking, uri = settings.tracking_uri, f"models:/{version.name}/{version.version}"
    with TemporaryDirectory() as scratch:
        try:
            local = mlflow.artifacts.download_artifacts(
                f"{uri}/{part}", dst_path=scratch, tracking_uri=tracking, registry_uri=tracking
            )
        except failures(MlflowException) as error:
            raise ValueError(
                f"the files of version {version.version} of {version.name} cannot be read ({error}); restore "
                f"{version.source}, or use another version"
            ) from error
        yield Path(local)
