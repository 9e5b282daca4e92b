from dataclasses import replace

import pytest

from dreamshard.costs import MeasuredOn
from dreamshard.tasks import PlacementTask
from storage.mlflow_store import registry
from storage.mlflow_store.registry import MEASURED_ON
from tests.helpers.tables import pool_of
from tests.helpers.trained import learnt_placer
from tests.helpers.versions import training_of, version_of

TABLES = "name,rows,dim,pooling_factor\nusers,100000,64,1\nitems,1000,64,12\nwords,1000,128,12\nclicks,5000,32,40\n"
_CPU = {"precision": "fp32", "batch_size": 2048, "versions": {"torch": "2.13.0"}, "optimizer": "sgd"}
_GPU = {"precision": "fp16", "batch_size": 65_536, "optimizer": "sgd"}
CPU = MeasuredOn(testbed="cluster", hardware="Intel(R) Xeon(R) Processor x2, 2 ranks", num_devices=2, **_CPU)
A100 = MeasuredOn(testbed="cluster", hardware="NVIDIA A100-SXM4-80GB x4", num_devices=4, **_GPU)
SIMULATED = MeasuredOn(testbed="simulated", hardware="simulated a100", num_devices=8, devices_per_host=8, **_GPU)
TRAINED = training_of(num_devices=2, memory_bytes=2**29)
TWO = ("--devices", "2", "--memory-gb", "1")


@pytest.fixture
def place(place_tables, monkeypatch):
    """A function that places four tables; the first of the versions given has the alias `champion`, others as given."""

    def run(*options: str, versions=(CPU,), champions: tuple[int, ...] = (), **tags: str):
        placers, known = {}, []
        for number, measured in enumerate(versions, start=1):
            uri, placer = f"models:/m/{number}", learnt_placer()
            network = placer.cost_network.for_task(PlacementTask(pool_of(8), 2, 2**40))
            network.measured_on = measured
            placers[uri] = type(placer)(network, placer.policy, placer.normaliser, budget_ms=1.0)
            aliases = ("champion",) if number in {1, *champions} else ()
            trained = version_of(uri, TRAINED, aliases, **{MEASURED_ON: measured.model_dump_json()}, **tags)
            known.insert(0, replace(trained, is_default=number == 1))
        monkeypatch.setattr(registry, "load_placer", lambda name, settings: placers[name])
        monkeypatch.setattr(registry, "versions", lambda settings: known)
        done, plan = place_tables(TABLES, *options)
        return done, plan, done.notes

    return run


@pytest.mark.parametrize("placer", ["champion", "dim_greedy"])
def test_a_plan_says_that_its_champion_is_provisional(place, placer):
    done, plan, notes = place(*TWO, "--placer", placer, provisional="+4.3 %")
    assert done.returncode == 0, done.sentence
    said = "m version 1 is provisional: not yet shown to be cheaper than a heuristic (+4.3 %)"
    assert (said in plan["warning"], notes.count(said)) == (True, 1)


def test_a_champion_of_cpu_ranks_does_not_price_64_a100s(place):
    done, plan, notes = place("--devices", "64", "--hardware", "a100")
    assert done.returncode == 0, done.sentence
    assert (plan["placer"], plan["differs_in"], plan["warning"]) == ("prior", [], "")
    assert (plan["costs_of"]["hardware"], plan["costs_of"]["num_devices"]) == ("simulated a100", 64)
    assert "no version was trained on a100, so the prior placer uses" in notes


@pytest.mark.parametrize(
    ("devices", "versions", "champions", "placer"),
    [
        ("4", (CPU, SIMULATED, A100), (), "m version 3"),  # as many devices
        ("4", (SIMULATED, A100), (), "m version 1"),
        ("4", (SIMULATED, A100, A100), (2,), "m version 2"),  # the champion of as many devices
        ("64", (A100, SIMULATED), (), "prior"),  # neither knows what happens between hosts
    ],
)
def test_a_version_of_the_hardware_comes_before_its_preset(place, devices, versions, champions, placer):
    chosen = ("--devices", devices, "--hardware", "a100")
    _, plan, notes = place(*chosen, versions=versions, champions=champions)
    assert (plan["placer"], placer.removeprefix("m ") in notes) == (placer, True)


SETTING = ("--devices", "4", "--memory-gb", "1", "--precision", "fp16", "--batch-size", "512")
DIFFERENT = {
    "hardware": (("--devices", "2", "--hardware", "a100", "--placer", "champion"), 3, ["hardware"], "not of a100"),
    "setting": (SETTING, 0, ["num_devices", "precision", "batch_size"], "devices, precision, batch size"),
    "strict": ((*SETTING, "--strict"), 3, ["num_devices", "precision", "batch_size"], "devices, precision, batch size"),
    "hosts": ((*TWO, "--devices-per-host", "1"), 0, ["devices_per_host"], "another devices per host"),
    "same": ((*TWO, "--devices-per-host", "8"), 0, [], ""),
}


@pytest.mark.parametrize(("options", "code", "differs", "said"), DIFFERENT.values(), ids=DIFFERENT)
def test_costs_of_something_else_warn_and_may_set_the_exit_code(place, options, code, differs, said):
    done, plan, notes = place(*options)
    assert (done.returncode, plan["differs_in"], said in plan["warning"]) == (code, differs, True), done.sentence
    assert (f"warning: {plan['warning']}" in notes) == bool(differs)


def test_hardware_of_ones_own_is_a_file(place, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: a100\nmemory: 40 GB\n")
    done, plan, notes = place("--devices", "2", "--hardware", str(mine))
    assert done.returncode == 0, done.sentence
    assert plan["costs_of"]["hardware"].startswith("simulated mine-")
    assert "87.5% of mine-" in notes
    mine.write_text("base: a100\nmemory: 40\n")
    assert "memory: '40'" in place("--devices", "2", "--hardware", str(mine))[0].sentence


def test_a_heuristic_is_priced_on_the_named_hardware(place):
    a100 = ("--devices", "2", "--hardware", "a100", "--placer")
    heuristic, prior = (place(*a100, name)[1] for name in ("lookup_greedy", "prior"))
    assert (heuristic["placer"], heuristic["costs_of"]) == ("lookup_greedy", prior["costs_of"])
    assert prior["predicted"]["overall_ms"] <= heuristic["predicted"]["overall_ms"]
    assert "--hardware h100" in place(*TWO, "--placer", "prior")[0].sentence, "it has no figures without hardware"
