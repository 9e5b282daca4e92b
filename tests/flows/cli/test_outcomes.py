"""The commands that a chain proposes next."""

from pathlib import Path

from dreamshard.tasks import PlacementTask
from flows.cli.outcomes import place_example
from tests.helpers.tables import tables_of


def test_the_proposed_command_places_on_the_hosts_that_were_learnt():
    outcome = {"version": "3", "alias": "champion"}
    on_hosts = PlacementTask(tables_of([10] * 4, 8, 1.0), 4, 2**30, devices_per_host=2)
    assert place_example(outcome, Path("t.csv"), on_hosts) == "place t.csv --devices 4 --devices-per-host 2 --memory-gb 1"
    on_one = PlacementTask(on_hosts.tables, 4, 2**30, devices_per_host=8)
    assert place_example(outcome, Path("t.csv"), on_one) == "place t.csv --devices 4 --memory-gb 1"
