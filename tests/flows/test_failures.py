"""A chain that fails after another one finished: one sentence, and everything earlier is as it was."""

import json
from pathlib import Path

import pytest

from dreamshard import recipes
from tests.flows.commands import Dreamshard, failed_with, files

HUNG = "gave no answer within 0.4 s"


@pytest.mark.timeout(600, method="thread")  # the other method would take the alarm that the time limit is made of
def test_a_testbed_that_hangs_is_one_sentence_in_time(dreamshard: Dreamshard, tmp_path: Path, monkeypatch):
    from dataclasses import replace

    impatient = replace(recipes.RECIPES["smoke"], measure=recipes.MeasureConfig(timeout_s=0.2))
    monkeypatch.setitem(recipes.RECIPES, "smoke", impatient)
    done = dreamshard("run", "--recipe", "smoke", "--testbed", "tests.flows.faulty_testbeds:hanging", home=tmp_path)
    failed_with(done, "measuring train-", "8 tables on 2 devices", HUNG, "earlier samples are kept")
    assert (tmp_path / "closed").read_text() == "xx", "a testbed that hung is ended, before the retry and after it"


def test_a_chain_that_fails_leaves_an_earlier_one_as_it_was(finished: Path, shared_dreamshard: Dreamshard):
    def earlier() -> dict[str, int]:
        found = files(finished)
        return {name: when for name, when in found.items() if name.startswith(("lake/", "mlartifacts", "evaluations/"))}

    before, models = earlier(), shared_dreamshard("models", "--json", home=finished).stdout
    done = shared_dreamshard(
        "run", "--recipe", "smoke", "--testbed", "tests.flows.faulty_testbeds:dying", home=finished
    )
    failed_with(done, "rank 1 died while measuring")
    after = earlier()
    assert {name: after[name] for name in before} == before
    assert not [name for name in files(finished) if name.endswith(".tmp")]
    assert shared_dreamshard("models", "--json", home=finished).stdout == models
    again = shared_dreamshard("run", "--recipe", "smoke", "--testbed", "simulated", "--json", home=finished)
    assert again.returncode == 0, again.sentence


def test_a_chain_ends_with_one_whole_version_though_the_store_fails_once(
    finished: Path, shared_dreamshard: Dreamshard, monkeypatch
):
    from storage.lake import catalog
    from storage.lake.lake import Lake
    from storage.mlflow_store import registry, runs
    from storage.run_records import checkpoints
    from storage.settings import Settings

    settings = Settings.from_environment({"DREAMSHARD_HOME": str(finished)})
    tried = []

    def away_at_first(owner, name: str) -> None:
        call = getattr(owner, name)

        def first_fails(*given, **more):
            tried.append(name)
            if tried.count(name) == 1:
                raise ConnectionError("the store is away")
            return call(*given, **more)

        monkeypatch.setattr(owner, name, first_fails)

    away_at_first(Lake, "write_tasks")
    away_at_first(Lake, "write_evaluation")
    away_at_first(checkpoints, "save")
    away_at_first(runs, "log_table")
    run = ("run", "--recipe", "smoke", "--testbed", "simulated", "--seed", "1", "--json")
    done = shared_dreamshard(*run, home=finished)
    assert done.returncode == 0, done.sentence
    outcome = json.loads(done.stdout)
    assert outcome["version"].endswith("/2")
    assert all(tried.count(name) > 1 for name in tried)
    assert [version.number for version in registry.versions(settings)] == [2, 1]
    (evaluated,) = catalog.query(
        settings, "select count(*) as rows, count(distinct (run_key, task, placer)) as once from evaluations"
    )
    assert evaluated["rows"] == evaluated["once"] > 0
