"""The compose files of `deploy/` with settings filled in, and the environment of the image."""

import re
import shlex
from pathlib import Path

import yaml

PROJECT = Path(__file__).parents[2]
DEPLOY = PROJECT / "deploy"
COMPOSE, STORE = ((DEPLOY / name).read_text() for name in ("compose.yaml", "store.yaml"))
SETTING = r"\$\{(\w+)(?::\?[^}]*)?\}"
SETTINGS = dict(re.findall(r"^([A-Z_]+)=(.*)$", (DEPLOY / ".env.example").read_text(), flags=re.MULTILINE))


def services(text: str = COMPOSE, **other: str) -> dict:
    """The services, each setting replaced by its value in `other` or the example."""
    given = SETTINGS | other
    return yaml.safe_load(re.sub(SETTING, lambda found: given[found[1]] or "ada:Pass-word_1", text))["services"]


def ours() -> dict:
    """The services that run our own image."""
    return {name: service for name, service in services().items() if "build" in service}


def image_environment() -> dict[str, str]:
    """The variables that the Dockerfile sets."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    words = [word for line in re.findall(r"^ENV (.*)$", text, flags=re.MULTILINE) for word in shlex.split(line)]
    return dict(word.split("=", 1) for word in words)
