"""All versions with their tags and figures, from MLflow's server in a few requests and without importing MLflow.

A server that wants anything but a password or a token is left to MLflow's own client, which knows more ways to log in.
"""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from dreamshard.names import Algorithm
from dreamshard.version_references import VersionReference
from storage.mlflow_store.listing import EXPERIMENT, Listing, VersionEntry, references
from storage.settings import REGISTERED_MODELS

_PAGE = 200  # versions, or runs, in one answer
_PATIENCE_S = 30
_OTHER_WAYS = (
    "MLFLOW_TRACKING_INSECURE_TLS",
    "MLFLOW_TRACKING_SERVER_CERT_PATH",
    "MLFLOW_TRACKING_CLIENT_CERT_PATH",
    "MLFLOW_TRACKING_AWS_SIGV4",
    "MLFLOW_TRACKING_AUTH",
    "MLFLOW_WORKSPACE",
)


def from_server(address: str, environ: Mapping[str, str]) -> Listing | None:
    """The registry of a server; None where only MLflow's own client can read it, or say why it cannot.

    Args:
        address: `http://...` or `https://...`.
        environ: user and password, or token, as MLflow's client reads them.
    """
    if any(environ.get(name) for name in _OTHER_WAYS):
        return None
    server = _Server(address.rstrip("/"), environ)
    try:
        return Listing.merged({algorithm: _read(server, algorithm) for algorithm in REGISTERED_MODELS})
    except (OSError, ValueError, KeyError):  # away, or no server of MLflow
        return None


class _Server:
    def __init__(self, address: str, environ: Mapping[str, str]) -> None:
        self.address, self.headers = address, {"Content-Type": "application/json"}
        user, password = environ.get("MLFLOW_TRACKING_USERNAME"), environ.get("MLFLOW_TRACKING_PASSWORD")
        token = environ.get("MLFLOW_TRACKING_TOKEN")
        if user and password:
            self.headers["Authorization"] = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
        elif token:
            self.headers["Authorization"] = f"Bearer {token}"

    def ask(self, path: str, body: Mapping[str, Any] | None = None, **query: str | int) -> dict[str, Any]:
        address = f"{self.address}/api/2.0/mlflow/{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, data, self.headers)
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            content: dict[str, Any] = json.load(answer)
            return content


def _read(server: _Server, algorithm: Algorithm) -> Listing:
    """The versions of an algorithm; raises `OSError` where the server does not say."""
    name = REGISTERED_MODELS[algorithm]
    try:
        model = server.ask("registered-models/get", name=name)["registered_model"]
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND and b"RESOURCE_DOES_NOT_EXIST" in error.read():
            return Listing(aliases={}, versions=())
        raise
    versions = list(_versions(server, name))
    metrics = _metrics(server, [each["run_id"] for each in versions if each.get("run_id")])
    entries = [
        VersionEntry(
            version=str(VersionReference(algorithm, str(each["version"]))),
            run=each.get("run_id") or None,
            created_ms=int(each["creation_timestamp"]),
            description=each.get("description", ""),
            tags=dict(sorted((tag["key"], tag.get("value", "")) for tag in each.get("tags", ()))),
            metrics=metrics.get(each.get("run_id", ""), {}),
        )
        for each in versions
    ]
    aliases = {each["alias"]: each["version"] for each in model.get("aliases", ())}
    return Listing(aliases=references(algorithm, aliases), versions=tuple(entries))


def _versions(server: _Server, model: str) -> Iterator[dict[str, Any]]:
    page = ""
    while True:
        answer = server.ask("model-versions/search", filter=f"name='{model}'", max_results=_PAGE, page_token=page)
        yield from answer.get("model_versions", ())
        page = answer.get("next_page_token", "")
        if not page:
            return


def _metrics(server: _Server, runs: list[str]) -> dict[str, dict[str, float]]:
    """Newest metrics by run."""
    found: dict[str, dict[str, float]] = {}
    if not runs:
        return found
    experiment = server.ask("experiments/get-by-name", experiment_name=EXPERIMENT)["experiment"]["experiment_id"]
    for start in range(0, len(runs), _PAGE):
        wanted = ", ".join(f"'{run}'" for run in runs[start : start + _PAGE])
        body = {"experiment_ids": [experiment], "filter": f"attributes.run_id IN ({wanted})", "max_results": _PAGE}
        for run in server.ask("runs/search", body).get("runs", ()):
            metrics = run.get("data", {}).get("metrics", ())
            found[run["info"]["run_id"]] = dict(sorted((each["key"], float(each["value"])) for each in metrics))
    return found
