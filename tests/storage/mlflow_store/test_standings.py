"""Which version is champion of which topology, and which gets the alias `champion`: rules over tags alone."""

import json

import pytest

from storage.mlflow_store.alias_history import AliasChange
from storage.mlflow_store.standings import HomeSetting, champions_among, takes_alias
from storage.mlflow_store.topology import Topology

RANKS, OTHER_RANKS = ("cluster", "NVIDIA H200 x8", 8), ("cluster", "NVIDIA H200 x4", 4)
MODEL, EMULATED = (
    ("simulated", "simulated rtx2080ti", 4),
    ("emulated", "NVIDIA H200 for each device, links of h200", 8),
)


def tags(topology: tuple[str, str, int], **more: str) -> dict[str, str]:
    testbed, hardware, devices = topology
    return {"origin": json.dumps({"setting": {"testbed": testbed, "hardware": hardware, "devices": devices}})} | more


def chosen(at: str, by: str = "evaluation") -> dict[str, str]:
    return {"alias_changes": json.dumps([vars(AliasChange(at=at, alias="champion", by=by))])}


def name(topology: tuple[str, str, int]) -> str:
    return str(Topology(testbed=topology[0], hardware=topology[1], num_devices=topology[2]))


def test_a_topology_in_words_names_hardware_devices_and_devices_per_host():
    assert name(MODEL) == "simulated rtx2080ti · 4 devices"
    measured = {"testbed": "cluster", "hardware": "NVIDIA H200 x16", "num_devices": 16, "devices_per_host": 8}
    assert str(Topology.of_tags({"measured_on": json.dumps(measured)})) == "NVIDIA H200 x16 · 16 devices, 8 per host"
    assert Topology.of_tags({"seed": "0"}) is None


def test_champions_are_known_by_their_tag():
    versions = {
        "3": tags(MODEL, champion_of=name(MODEL)),
        "2": tags(RANKS),
        "1": tags(RANKS, champion_of=name(RANKS)),
    }
    assert champions_among(versions) == {name(MODEL): "3", name(RANKS): "1"}


@pytest.mark.parametrize(
    ("candidate", "holder", "gets_it"),
    [
        (MODEL, None, True),
        (MODEL, MODEL, True),
        (MODEL, RANKS, False),
        (EMULATED, RANKS, False),
        (RANKS, MODEL, True),
        (RANKS, EMULATED, True),
        (MODEL, EMULATED, False),
        (OTHER_RANKS, RANKS, False),
    ],
)
def test_without_a_setting_only_measured_costs_take_the_alias_from_modelled_ones(candidate, holder, gets_it):
    assert takes_alias(tags(candidate), None if holder is None else tags(holder), None) is gets_it


@pytest.mark.parametrize(
    ("candidate", "holder", "gets_it"),
    [
        (MODEL, None, False),
        (RANKS, None, True),
        (RANKS, OTHER_RANKS, True),
        (OTHER_RANKS, RANKS, False),
        (OTHER_RANKS, MODEL, False),
        (MODEL, MODEL, True),
    ],
)
def test_with_a_setting_the_alias_goes_to_the_champion_of_the_homes_topology(candidate, holder, gets_it):
    home = HomeSetting(testbed="cluster", num_devices=8, since="2026-01-01")
    assert takes_alias(tags(candidate), None if holder is None else tags(holder), home) is gets_it


def test_what_a_person_chose_holds_until_the_home_is_set_anew():
    holder = tags(MODEL, **chosen("2026-02-01", by="ann"))
    assert not takes_alias(tags(RANKS), holder, None)
    assert not takes_alias(tags(RANKS), holder, HomeSetting(testbed=None, num_devices=8, since="2026-01-01"))
    assert takes_alias(tags(RANKS), holder, HomeSetting(testbed=None, num_devices=8, since="2026-03-01"))
    assert takes_alias(tags(MODEL), holder, None), "it was compared with that one"


def test_a_home_set_to_no_testbed_is_one_of_real_devices():
    home = HomeSetting(testbed=None, num_devices=4, since="")
    assert home.includes(Topology(testbed="cluster", hardware="a machine", num_devices=4))
    topology = Topology(testbed="simulated", hardware="simulated h100", num_devices=4)
    assert not home.includes(topology)
    assert not topology.is_measured
    planned = HomeSetting.of_tags({"home_testbed": "simulated:h100", "home_devices": ""})
    assert planned is not None
    assert planned.includes(Topology(testbed="simulated", hardware="simulated h100", num_devices=4))
    assert HomeSetting.of_tags(planned.tags()) == planned
