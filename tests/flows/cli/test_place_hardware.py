"""`dreamshard place --hardware`: whose costs a plan is of, and what it says where they are of something else."""

import json
from dataclasses import replace

import pytest

from dreamshard.costs import MeasuredOn
from storage.mlflow_store import registry
from storage.mlflow_store.registry import MEASURED_ON
from storage.settings import Settings
from tests.flows.commands import dreamshard
from tests.helpers.trained import learnt_placer
from tests.helpers.versions import training_of, version_of

TABLES = "name,rows,dim,pooling_factor\nusers,100000,64,1\nitems,1000,64,12\nwords,1000,128,12\nclicks,5000,32,40\n"
CPU = MeasuredOn(
    testbed="cluster",
    hardware="Intel(R) Xeon(R) Processor x2, 2 ranks",
    num_devices=2,
    precision="fp32",
    optimizer="sgd",
    batch_size=2048,
    versions={"torch": "2.13.0"},
)
A100 = MeasuredOn(
    testbed="cluster",
    hardware="NVIDIA A100-SXM4-80GB x4",
    num_devices=4,
    precision="fp16",
    optimizer="sgd",
    batch_size=65_536,
)
SIMULATED = MeasuredOn(
    testbed="simulated",
    hardware="simulated a100",
    num_devices=8,
    devices_per_host=8,
    precision="fp16",
    optimizer="sgd",
    batch_size=65_536,
)


TRAINED = training_of(num_devices=2, memory_bytes=2**29)


@pytest.fixture
def place(place_tables, monkeypatch):
    """A function that places four tables; the first of the versions given has the alias `champion`, others as given."""

    def run(
        *options: str,
        versions: tuple[MeasuredOn, ...] = (CPU,),
        champions: tuple[str, ...] = (),
        provisional: str = "",
    ):
        placers, known = {}, []
        in_use = {1, *map(int, champions)}
        for number, measured in enumerate(versions, start=1):
            uri, placer = f"models:/m/{number}", learnt_placer()
            network = placer.cost_network.for_task(placer_task())
            network.measured_on = measured
            placers[uri] = type(placer)(network, placer.policy, placer.normaliser, budget_ms=1.0)
            tags = {MEASURED_ON: measured.model_dump_json()} | (
                {"provisional": provisional} if provisional and number == 1 else {}
            )
            aliases = ("champion",) if number in in_use else ()
            known.insert(0, replace(version_of(uri, TRAINED, aliases, **tags), is_default=number == 1))
        placers["champion"] = placers["models:/m/1"]
        monkeypatch.setattr(Settings, "has_registry", True)  # the home has no database
        monkeypatch.setattr(registry, "champion", lambda settings: known[-1])
        monkeypatch.setattr(registry, "find", lambda settings, name: known[-1])
        monkeypatch.setattr(registry, "load_placer", lambda name, settings: placers[name])
        monkeypatch.setattr(registry, "versions", lambda settings: known)
        done = place_tables(TABLES, *options)
        return done, json.loads(done.stdout) if done.stdout.startswith("{") else {}, done.notes

    return run


def placer_task():
    from dreamshard.tasks import PlacementTask
    from tests.helpers.tables import pool_of

    return PlacementTask(pool_of(8), 2, 2**40)


@pytest.mark.parametrize("placer", ["champion", "dim_greedy"])
def test_a_plan_says_that_the_champion_behind_its_costs_is_provisional(place, placer):
    done, plan, notes = place("--devices", "2", "--memory-gb", "1", "--placer", placer, provisional="+4.3 %")
    assert done.returncode == 0, done.sentence
    said = "champion is provisional: not yet shown to be cheaper than a rule of thumb (+4.3 %)"
    assert said in plan["warning"]
    assert notes.count(said) == 1


def test_a_champion_of_cpu_ranks_does_not_price_64_a100s(place):
    done, plan, notes = place("--devices", "64", "--hardware", "a100")
    assert done.returncode == 0, done.sentence
    assert plan["placer"] == "prior"
    assert plan["costs_of"]["hardware"] == "simulated a100"
    assert plan["costs_of"]["num_devices"] == 64
    assert plan["differs_in"] == []
    assert plan["warning"] == ""
    assert "no version was trained on a100, so the prior placer places" in notes
    assert "simulated:a100" in notes


def test_a_version_of_the_hardware_comes_before_its_preset_and_a_champion_before_other_versions(place):
    _, plan, notes = place("--devices", "4", "--hardware", "a100", versions=(CPU, SIMULATED, A100))
    assert plan["placer"] == "m version 3"  # as many devices
    assert "version 3 places" in notes
    _, plan, notes = place("--devices", "4", "--hardware", "a100", versions=(SIMULATED, A100))
    assert plan["placer"] == "m version 1"
    assert "version 1" in notes
    _, plan, notes = place("--devices", "4", "--hardware", "a100", versions=(SIMULATED, A100, A100), champions=("2",))
    assert plan["placer"] == "m version 2", "the champion of as many devices"
    assert "version 2" in notes
    _, plan, _ = place("--devices", "64", "--hardware", "a100", versions=(A100, SIMULATED))
    assert plan["placer"] == "prior"  # neither knows what happens between hosts


def test_costs_of_other_hardware_are_a_warning_and_an_exit_code_of_their_own(place):
    done, plan, notes = place("--devices", "2", "--hardware", "a100", "--placer", "champion")
    assert done.returncode == 3
    assert plan["tables"]
    assert plan["differs_in"] == ["hardware"]
    assert "the costs are of Intel(R) Xeon(R)" in plan["warning"]
    assert "not of a100" in plan["warning"]
    assert f"warning: {plan['warning']}" in notes


def test_another_setting_is_a_warning_and_with_strict_an_exit_code(place):
    options = ("--devices", "4", "--memory-gb", "1", "--precision", "fp16", "--batch-size", "512")
    done, plan, _ = place(*options)
    assert done.returncode == 0
    assert plan["differs_in"] == ["num_devices", "precision", "batch_size"]
    assert "estimates for another number of devices, precision, batch size" in plan["warning"]
    done, strict, _ = place(*options, "--strict")
    assert done.returncode == 3
    assert strict == plan


def test_other_hosts_than_the_measured_ones_are_a_warning(place):
    options = ("--devices", "2", "--memory-gb", "1", "--devices-per-host")
    _, plan, _ = place(*options, "1")
    assert plan["differs_in"] == ["devices_per_host"]
    assert "estimates for another devices per host" in plan["warning"]
    _, plan, _ = place(*options, "8")
    assert plan["warning"] == ""


def test_hardware_of_ones_own_is_a_file(place, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: a100\nmemory: 40 GB\n")
    done, plan, notes = place("--devices", "2", "--hardware", str(mine))
    assert done.returncode == 0, done.sentence
    assert plan["costs_of"]["hardware"].startswith("simulated mine-")
    assert "87.5% of what mine-" in notes
    mine.write_text("base: a100\nmemory: 40\n")
    done, _, _ = place("--devices", "2", "--hardware", str(mine))
    assert done.returncode == 1
    assert "memory is '40'" in done.sentence


def test_a_rule_of_thumb_is_priced_on_the_hardware_that_is_asked_for(place):
    _, rule, _ = place("--devices", "2", "--hardware", "a100", "--placer", "lookup_greedy")
    _, prior, _ = place("--devices", "2", "--hardware", "a100", "--placer", "prior")
    assert rule["placer"] == "lookup_greedy"
    assert rule["costs_of"] == prior["costs_of"]
    assert prior["predicted"]["overall_ms"] <= rule["predicted"]["overall_ms"]


def test_without_hardware_a_plan_is_for_the_devices_that_the_version_was_trained_for(place):
    done, plan, _ = place()
    assert done.returncode == 0, done.sentence
    assert plan["num_devices"] == 2
    assert max(device["memory_bytes"] for device in plan["predicted"]["devices"]) <= 2**29


def test_the_homes_setting_comes_before_what_the_version_was_trained_for(place, new_home):
    kept = new_home / "setting.json"
    try:
        for setting, devices in (({"devices": 3, "memory_gb": 1}, 3), ({"recipe": "smoke"}, 2)):
            kept.write_text(json.dumps(setting))
            _, plan, _ = place()
            assert plan["num_devices"] == devices
        kept.write_text('{"devices": 3}')
        _, plan, notes = place("--hardware", "a100")
        assert (plan["num_devices"], "87.5% of what a100 has" in notes) == (3, True)
        assert place("--placer", "champion")[1]["num_devices"] == 2, "a version that is named knows its devices"
        assert "neither hardware nor memory is given" in place()[0].sentence, "3 devices were not trained for"
    finally:
        kept.unlink()


def test_the_prior_has_no_figures_without_hardware(place):
    done, _, _ = place("--devices", "2", "--memory-gb", "1", "--placer", "prior")
    assert done.returncode == 1
    assert "--hardware h100" in done.sentence


def test_a_bundled_list_is_placed_by_its_name(new_home, monkeypatch):
    monkeypatch.setenv("DREAMSHARD_HOME", str(new_home))
    done = dreamshard("place", "mlperf-dlrm-dcnv2", "--devices", "8", "--hardware", "a100")
    assert done.returncode == 0, done.sentence
    assert len(json.loads(done.stdout)["tables"]) == 26
