"""A chain that fails after another one finished: one sentence, and everything earlier is as it was."""

import json
from pathlib import Path

import pytest

from dreamshard import recipes
from tests.flows.commands import Dreamshard, failed_with, files

pytestmark = pytest.mark.flow

HUNG = "gave no answer within 0.4 s"


@pytest.mark.timeout(600, method="thread")  # the other method would take the alarm that the time limit is made of
def test_a_testbed_that_hangs_is_one_sentence_in_time(dreamshard: Dreamshard, tmp_path: Path, monkeypatch):
    from dataclasses import replace

    impatient = replace(recipes.smoke(), measure=recipes.MeasureConfig(timeout_s=0.2))
    monkeypatch.setitem(recipes.RECIPES, "smoke", lambda: impatient)
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


def test_a_champion_of_an_older_format_does_not_stop_retraining(dreamshard: Dreamshard, tmp_path: Path):
    from storage.mlflow_store import alias_changes, registry
    from storage.store import open_store

    run = ("run", "--recipe", "smoke", "--testbed", "simulated", "--json")
    assert dreamshard(*run, home=tmp_path).returncode == 0
    alias_changes.set_alias(open_store().settings, "1", "champion", "for the test")
    (config,) = tmp_path.glob("mlartifacts/**/placer/config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"format": 0}))
    config.with_name("digests.json").unlink()  # such releases kept none
    registry.untag(open_store().settings, "1", registry.DIGEST_TAG)
    done = dreamshard(*run, "--seed", "1", home=tmp_path)
    assert done.returncode == 0, done.sentence
    outcome = json.loads(done.stdout)
    assert outcome["version"] == "2"
    assert "champion version 1 cannot be used" in outcome["reason"]
    assert "other than this version's" in outcome["reason"]
    assert registry.version_tags(open_store().settings, "2")["reason"] == outcome["reason"]


def test_a_store_and_a_registry_that_fail_once_end_with_one_whole_version_and_nothing_done_twice(
    dreamshard: Dreamshard, tmp_path: Path, monkeypatch
):
    from botocore.exceptions import EndpointConnectionError

    from storage.lake import catalog
    from storage.lake.lake import Lake
    from storage.mlflow_store import evaluation_datasets, registry, versions
    from storage.run_records import checkpoints
    from storage.store import open_store

    tried = []

    def away_at_first(owner, name: str, error: Exception) -> None:
        call = getattr(owner, name)

        def first_fails(*given, **more):
            tried.append(name)
            if tried.count(name) == 1:
                raise error
            return call(*given, **more)

        monkeypatch.setattr(owner, name, first_fails)

    store_is_down = EndpointConnectionError(endpoint_url="http://127.0.0.1:1/team")
    away_at_first(Lake, "write_table_lookups", store_is_down)
    away_at_first(Lake, "write_tasks", store_is_down)
    away_at_first(Lake, "write_evaluation", store_is_down)
    away_at_first(checkpoints, "save", store_is_down)
    away_at_first(evaluation_datasets, "log_figures_on", OSError("the server is away"))
    done = dreamshard("run", "--recipe", "smoke", "--testbed", "simulated", home=tmp_path)
    assert done.returncode == 0, done.sentence
    settings = open_store().settings
    assert tried.count("write_evaluation") == 3, "of the held-out tasks, again, and of the reference tasks"
    assert tried.count("log_figures_on") == 2
    assert [str(version.version) for version in registry.all_versions(settings)] == ["1"]
    assert "eval_overall_ms" in versions.version(settings, "1")
    (evaluated,) = catalog.query(
        settings, "select count(*) as rows, count(distinct (task, placer)) as once from evaluations"
    )
    assert evaluated["rows"] == evaluated["once"] > 0
