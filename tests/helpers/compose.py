"""The compose files of `deploy/` with settings filled in."""

import re
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
