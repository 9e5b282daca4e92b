"""The commands that a chain proposes next."""

from pathlib import Path

from dreamshard.tasks import PlacementTask
from flows.cli.outcomes import place_example
from tests.helpers.tables import tables_of


def test_the_proposed_command_places_on_the_hosts_that_were_learnt():
    outcome = {"version": "3", "alias": "champion"}
    on_hosts = PlacementTask(tables_of([10] * 4, 8, 1.0), 4, 2**30, devices_per_host=2)
    assert (
        place_example(outcome, Path("t.csv"), on_hosts) == "place t.csv --devices 4 --devices-per-host 2 --memory-gb 1"
    )
    on_one = PlacementTask(on_hosts.tables, 4, 2**30, devices_per_host=8)
    assert place_example(outcome, Path("t.csv"), on_one) == "place t.csv --devices 4 --memory-gb 1"


def test_without_a_list_of_ones_own_it_places_a_bundled_one_by_its_name():
    command = place_example({"version": "3", "alias": "challenger"})
    assert command == "place mlperf-dlrm-dcnv2 --devices 8 --memory-gb 40 --placer 3"
