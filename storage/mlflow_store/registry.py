"""Versions of the placer in MLflow's registry: what each is, how good it is, which one is in use, and why.

The model is `dreamshard`. Aliases: `champion` is the version in use, `challenger` the newest that did not beat it,
`previous` the champion before this one. Weights are safetensors and configurations JSON; nothing is pickled.
"""

import json
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dreamshard import model_files
from dreamshard.search import DreamShardPlacer
from storage.filesystem import failures
from storage.mlflow_store.runs import client  # first: it turns MLflow's telemetry off
from storage.settings import Settings

# isort: split
import mlflow.artifacts
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

MODEL = "dreamshard"
ALIASES = ("champion", "challenger", "previous")
Alias = Literal["champion", "challenger", "previous"]

BY_EVALUATION = "evaluation"
"""Who decided, where it was no person."""

_CHANGE = re.compile(r"(\S+ \S+ UTC) (champion|previous), by (.*?): ")
"""A line of the tag `history` that says that the version came into use, or went out of it."""

_DESCRIPTION = 5000  # characters that MLflow's database takes


@dataclass(frozen=True, kw_only=True)
class Change:
    """Which version is champion now, and which was before: the same where nothing had to change."""

    version: str
    former: str | None


def set_alias(
    settings: Settings,
    version: str,
    alias: Alias,
    reason: str,
    tags: Mapping[str, Any] | None = None,
    *,
    by: str = BY_EVALUATION,
) -> None:
    """Point an alias at a version and say on it why, who and when: tags `alias`, `reason`, `decided_by`, `decided_at`.

    A new champion makes the old one `previous`, and is no longer the challenger. Tag `history` has a line for every
    change of either.

    Raises:
        ValueError: there is no such version.
    """
    registry = client(settings)
    found = find(settings, version)
    version = str(found.version)  # which the database hands out as a number
    now = aliases(settings)
    former = now.get("champion")
    if alias == "champion":
        if former is not None and former != version:
            _write_decision(registry, find(settings, former), "previous", f"replaced by version {version}", by)
            registry.set_registered_model_alias(MODEL, "previous", former)
        if now.get("challenger") == version:
            registry.delete_registered_model_alias(MODEL, "challenger")
    tag(settings, version, {**(tags or {}), "reason": reason, "decided_by": by, "decided_at": _now()})
    _write_decision(registry, found, alias, reason, by)
    registry.set_registered_model_alias(MODEL, alias, version)  # last: who sees it sees why


def make_champion(settings: Settings, name: str, reason: str, by: str) -> Change:
    """Make a version champion at once, whatever its figures; the champion before it is `previous` from then on.

    Args:
        name: a version's number or an alias; `previous` undoes the last change.
        reason: kept on the version.
        by: who wants it, kept on the version.

    Raises:
        ValueError: there is no such version (the message lists those there are), or it cannot place; nothing changes.
    """
    version, former = str(find(settings, name).version), champion(settings)
    if version != former:
        load_placer(version, settings)  # one that cannot be read must not come into use
        set_alias(settings, version, "champion", reason, by=by)
    return Change(version=version, former=former)


def taken_out_by_hand(settings: Settings, version: str) -> str | None:
    """When a person made another version champion instead of this one; None where none did, or it was in use again since.

    Raises:
        ValueError: there is no such version.
    """
    past = version_tags(settings, version).get("history", "").splitlines()
    changes = [found.groups() for found in map(_CHANGE.match, past) if found is not None]
    if not changes:
        return None
    when, alias, by = changes[-1]
    return when if alias == "previous" and by != BY_EVALUATION else None


def aliases(settings: Settings) -> dict[str, str]:
    """Alias to version; empty while nothing is registered."""
    try:
        found = client(settings).get_registered_model(MODEL).aliases
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return {}
    return {alias: str(version) for alias, version in found.items()}


def champion(settings: Settings) -> str | None:
    """The version in use, or None before the first."""
    return aliases(settings).get("champion")


def version_tags(settings: Settings, version: str) -> dict[str, str]:
    """Tags of a version or alias.

    Raises:
        ValueError: there is no such version.
    """
    return dict(find(settings, version).tags)


def run_of(settings: Settings, name: str) -> str:
    """The run that a version or alias came from.

    Raises:
        ValueError: there is no such version.
    """
    return str(find(settings, name).run_id)


def model_of(settings: Settings, name: str) -> str:
    """MLflow's id of a version's files, which no other registry gives to others.

    Raises:
        ValueError: there is no such version.
    """
    return str(find(settings, name).source).removeprefix("models:/")


def tag(settings: Settings, version: str, tags: Mapping[str, Any]) -> None:
    """Set tags of a version."""
    for name, value in tags.items():
        client(settings).set_model_version_tag(MODEL, version, name, str(value))


def describe(settings: Settings, version: str, text: str) -> None:
    """Put `text` (Markdown) below the first line of a version's description, which says what was decided on it."""
    first = (find(settings, version).description or "").partition("\n\n")[0]
    client(settings).update_model_version(MODEL, version, description=f"{first}\n\n{text}"[:_DESCRIPTION])


def named_in_tags(settings: Settings) -> frozenset[str]:
    """Every value of every tag of every version: the keys of what versions came from are among them."""
    found: set[str] = set()
    page: str | None = ""
    while page is not None:
        answer = client(settings).search_model_versions(f"name='{MODEL}'", max_results=200, page_token=page or None)
        found |= {str(value) for version in answer for value in version.tags.values()}
        page = answer.token or None
    return frozenset(found)


def find_version(settings: Settings, tags: Mapping[str, Any]) -> str | None:
    """The newest version that carries all of `tags`, or None."""
    wanted = {(name, str(value)) for name, value in tags.items()}
    matching = [found for found in all_versions(settings) if wanted <= set(found.tags.items())]
    return str(matching[0].version) if matching else None


def tags_by_version(settings: Settings) -> dict[str, dict[str, str]]:
    """The tags of every version, newest first."""
    return {str(found.version): dict(found.tags) for found in all_versions(settings)}


def resolve(settings: Settings, name: str) -> str:
    """The number of the version that an alias or a number names at present.

    Raises:
        ValueError: there is none of that name; the message lists those there are.
    """
    return str(find(settings, name).version)


def example_request(settings: Settings, version: str) -> str:
    """A request that the version's scoring server answers, as JSON on one line.

    Raises:
        ValueError: the version's files cannot be read.
    """
    with _downloaded(settings, find(settings, version), "serving_input_example.json") as file:
        return json.dumps(json.loads(file.read_text(encoding="utf-8")))


def load_placer(name: str = "champion", settings: Settings | None = None) -> DreamShardPlacer:
    """The placer of an alias or version, from safetensors and JSON.

    Args:
        name: `champion`, `challenger`, `previous`, or a version's number.
        settings: where the registry is; by default what the environment says.

    Raises:
        ValueError: there is none of that name (the message lists those there are), or its files are gone or damaged.
    """
    home = settings or Settings.from_environment()
    with _downloaded(home, find(home, name), "artifacts/placer") as folder:
        return model_files.load_placer(folder)


@contextmanager
def _downloaded(settings: Settings, version: ModelVersion, part: str) -> Iterator[Path]:
    """A file or folder of a version on this machine, while the block runs.

    Raises:
        ValueError: it is gone (from FileNotFoundError), or cannot be reached (from what the store or the registry raised).
    """
    store, uri = settings.tracking_uri, f"models:/{MODEL}/{version.version}"
    with tempfile.TemporaryDirectory() as scratch:
        try:
            found = mlflow.artifacts.download_artifacts(
                f"{uri}/{part}", dst_path=scratch, tracking_uri=store, registry_uri=store
            )
        except failures(MlflowException) as error:
            cause = FileNotFoundError(f"there is no {part}") if _is_gone(store, uri, part) else error
            raise _unreadable(version, cause) from cause
        yield Path(found)


def _is_gone(store: str, uri: str, part: str) -> bool:
    """Whether the version's store answers and has no such part: a download says the same of that as of an outage."""
    try:
        listed = mlflow.artifacts.list_artifacts(f"{uri}/{part.rpartition('/')[0]}", tracking_uri=store)
    except failures(MlflowException):
        return False
    return all(entry.path != part for entry in listed)


def _unreadable(version: ModelVersion, error: BaseException) -> ValueError:
    return ValueError(
        f"the files of version {version.version} of {MODEL} cannot be read ({error}), so it cannot place; restore "
        f"{version.source}, or use another version"
    )


def _write_decision(registry: MlflowClient, version: ModelVersion, alias: Alias, reason: str, by: str) -> None:
    """Tags `alias` and `history`, and the first line of the description; the rest of it stays."""
    number, past = str(version.version), version.tags.get("history", "").splitlines()
    line = f"{alias}, by {by}: {reason}"
    if not past or past[-1].partition(" UTC ")[2] != line:  # a retried step says it once
        history = "\n".join([*past, f"{_now()} {line}"])
        registry.set_model_version_tag(MODEL, number, "history", history)
    registry.set_model_version_tag(MODEL, number, "alias", alias)
    _, blank, rest = (version.description or "").partition("\n\n")
    registry.update_model_version(MODEL, number, description=f"{alias}: {reason}{blank}{rest}")


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())


def find(settings: Settings, name: str) -> ModelVersion:
    """The version that an alias or a number names at present.

    Raises:
        ValueError: there is none of that name; the message lists those there are.
    """
    known = aliases(settings)
    number = known.get(name, name)
    if number.isdigit():
        try:
            return client(settings).get_model_version(MODEL, number)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
    there = [f"{alias} (version {version})" for alias, version in known.items()]
    there += [f"version {found.version}" for found in all_versions(settings)]
    raise ValueError(
        f"there is no {f'{name} yet' if name in ALIASES else f'version {name!r}'} of {MODEL} at "
        f"{settings.tracking_uri}, so it cannot be used; "
        + (f"there are {', '.join(there)}" if there else "train one first with `dreamshard run`")
    )


def all_versions(settings: Settings) -> Sequence[ModelVersion]:
    """Newest first; without aliases, which MLflow leaves out of what a search returns."""
    found = client(settings).search_model_versions(f"name='{MODEL}'", max_results=1000)
    return sorted(found, key=lambda version: -int(version.version))
