"""Trying a version out on other hardware, and comparing versions by their own sizes: what the command says."""

import json
from pathlib import Path

import pytest

from storage.mlflow_store import registry
from storage.settings import Settings
from tests.flows.commands import Dreamshard, failed_with

pytestmark = pytest.mark.flow

SMALL = ("--recipe", "smoke", "--devices", "2", "--memory-gb", "1", "--iterations", "1")


@pytest.fixture(scope="module")
def home(shared_dreamshard: Dreamshard, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1 on a simulated 2080 Ti, and version 2 of the same list tried out on a simulated H100."""
    folder = tmp_path_factory.mktemp("tried")
    rows = [f"t{number:02},{1000 * number},16,{number % 7 + 1}" for number in range(1, 25)]
    (folder / "tables.csv").write_text("\n".join(["name,rows,dim,pooling_factor", *rows]) + "\n")
    for more in (("--testbed", "simulated"), ("--testbed", "simulated:h100", "--no-promote")):
        done = shared_dreamshard("run", "--source", str(folder / "tables.csv"), *SMALL, *more, home=folder / "home")
        assert done.returncode == 0, done.sentence
    assert "Version 2 is a try-out: " in done.stdout
    assert "Note: no version's standing changed; `dreamshard promote 2` makes it champion" in done.stdout
    return folder / "home"


def test_a_try_out_changes_no_alias(home: Path, shared_dreamshard: Dreamshard):
    settings = Settings.from_environment({"DREAMSHARD_HOME": str(home)})
    assert "2" not in registry.aliases(settings).values()
    assert registry.version_tags(settings, "2")["tryout"] == "yes"
    assert "│ standing " in (table := shared_dreamshard("models", home=home).stdout)
    assert "try-out" in table
    failed_with(shared_dreamshard("promote", "2", "--no-promote", home=home), "leave out --no-promote")


def test_versions_are_compared_by_their_own_sizes(home: Path, shared_dreamshard: Dreamshard):
    done = shared_dreamshard("compare", "1", "2", "--json", home=home)
    assert done.returncode == 0, done.sentence
    outcome = json.loads(done.stdout)
    assert {row["placer"] for row in outcome["table"]} == {"version 1", "version 2"}
    report = json.loads(Path(outcome["report"]).read_text())
    assert report["measured_on"]["num_devices"] == 2
    for part in (
        "compared as version 1 was trained: ",
        "the testbed is that of version 1, simulated:rtx2080ti, not simulated:h100 (version 2)",
        "the predictions are those of version 2 of simulated h100 · 2 devices",
    ):
        assert part in outcome["notes"]
