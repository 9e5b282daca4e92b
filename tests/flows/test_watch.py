"""When tables changed enough to ask for a retraining, and when one is under way. The event itself: `test_servers.py`."""

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from prefect.client.schemas.objects import StateType

from dreamshard.workloads.dataset_diff import DatasetDiff, DriftThresholds
from flows import watch
from flows.decisions import retraining_due, version_in_use
from flows.forms.configuration import configure
from flows.forms.options import RetrainingOptions
from flows.tasks import watching
from storage.run_records import lineage
from tests.flows.commands import Dreamshard

NEW = DatasetDiff(changes=(), num_before=0, num_after=20, thresholds=DriftThresholds())
SMOKE = ("--recipe", "smoke", "--testbed", "simulated")


def run(state: StateType, source: str | None = "tables.csv", *, scheduled: bool = False, hours: float = 0, **other):
    parameters = {"recipe": "smoke", "source": source, "seed": 0} | other
    since = SimpleNamespace(timestamp=datetime.now(UTC) - timedelta(hours=hours))
    return SimpleNamespace(
        state_type=state, state=since, auto_scheduled=scheduled, parameters=parameters, name="able-ant"
    )


WATCHED = RetrainingOptions(recipe="smoke", source="tables.csv", num_devices=8)


class Server:
    """Prefect's server as `get_client` gives it: flow runs under way and events, the newest first."""

    def __init__(self, runs=(), events=()):
        self.runs, self.events = runs, events

    def __call__(self, **_):
        return nullcontext(self)

    def read_flow_runs(self, *, limit, offset=0, **_):
        return self.runs[offset : offset + limit]

    def read_events(self, wanted, limit):
        assert wanted.event.name == ["dreamshard.tables.changed"]
        within = wanted.occurred
        found = [event for event in self.events if within.since <= event.occurred <= within.until]
        return SimpleNamespace(events=found[:limit])


@pytest.mark.parametrize(
    ("found", "under_way"),
    [
        (run(StateType.RUNNING, num_devices=8), True),
        (run(StateType.SCHEDULED, num_devices=8), True),
        (run(StateType.RUNNING, scheduled=True, num_devices=8), True),
        (run(StateType.RUNNING, hours=30, num_devices=8), True),
        (run(StateType.PENDING, hours=0.5, num_devices=8), True),
        (run(StateType.PENDING, hours=2, num_devices=8), False),  # its worker is gone
        (run(StateType.RUNNING, num_devices=8, testbed=""), True),
        (run(StateType.RUNNING, "./tables.csv", num_devices=8), True),
        (run(StateType.SCHEDULED, scheduled=True, num_devices=8), False),
        (run(StateType.RUNNING, num_devices=16), False),
        (run(StateType.RUNNING, num_devices=8, devices_per_host=4), False),
        (run(StateType.RUNNING), False),
        (run(StateType.RUNNING, num_devices=8, memory_gb=4.0), False),
        (run(StateType.RUNNING, num_devices=8, testbed="simulated"), False),
        (run(StateType.RUNNING, "other.csv", num_devices=8), False),
        (run(StateType.RUNNING, "", num_devices=8), False),
        (run(StateType.RUNNING, recipe="default", num_devices=8), False),
    ],
)
def test_the_same_retraining_is_waited_for_but_no_schedule(monkeypatch, found, under_way):
    monkeypatch.setattr(watching, "get_client", Server(runs=[found]))
    assert watching.find_running.fn(WATCHED) == ("able-ant" if under_way else None)


def asked(hours_ago: float, dataset: str, **other):
    occurred = datetime.now(UTC) - timedelta(hours=hours_ago)
    return SimpleNamespace(occurred=occurred, payload={"dataset": dataset, "parameters": WATCHED.parameters() | other})


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([], False),
        ([asked(1, "b")], True),
        ([asked(1, "b"), asked(2, "a")], True),
        ([asked(25, "b")], False),  # failed or lost, and a day is over
        ([asked(1, "a"), asked(2, "b")], False),  # tables changed since, and back
        ([asked(1, "b", num_devices=16)], False),
        ([asked(1, "a", num_devices=16), asked(2, "b")], True),
    ],
)
def test_what_was_asked_for_is_not_asked_for_again_within_a_day_unless_tables_change(monkeypatch, events, found):
    monkeypatch.setattr(watching, "get_client", Server(events=events))
    last = watching.find_requests.fn("b", WATCHED)[:1]
    assert last == ([next(event.occurred for event in events if event.payload["dataset"] == "b")] if found else [])


def version(number: int, dataset: str, source: str = "tables.csv", recipe: str = "smoke", **other):
    setting = {"testbed": "simulated", "hardware": "simulated rtx2080ti", "devices": 2, "tables per task": 8}
    origin = lineage.Origin(
        recipe=recipe,
        source=source,
        dataset=dataset,
        tasks="of it",
        setting={name: other.pop(name.replace(" ", "_"), value) for name, value in setting.items()},
        memory_bytes=other.pop("memory_bytes", None),
    )
    is_tryout = other.pop("is_tryout", False)
    assert not other
    return SimpleNamespace(version=str(number), origin=origin, is_champion=False, is_tryout=is_tryout)


@pytest.mark.parametrize(
    ("versions", "champion", "dataset", "trained"),
    [
        ([], None, "a", None),
        ([version(1, "a")], "1", "b", "a"),
        ([version(1, "a", source="./tables.csv")], "1", "b", "a"),
        ([version(2, "b"), version(1, "a")], "2", "a", "b"),  # back to what the champion has not been trained on
        ([version(2, "b"), version(1, "a")], "1", "a", "a"),  # the champion itself was
        ([version(3, "c"), version(2, "b"), version(1, "a")], "1", "b", "b"),  # a challenger since then was
        ([version(2, "b", is_tryout=True), version(1, "a")], "1", "b", "a"),
        ([version(2, "b", source="other.csv"), version(1, "a")], "2", "a", "a"),
        ([version(2, "b", recipe="default"), version(1, "a")], "2", "c", "a"),
        ([version(2, "b", devices=4), version(1, "a")], "2", "b", "a"),
        ([version(2, "b", tables_per_task=9), version(1, "a")], "2", "b", "a"),
        ([version(2, "b", memory_bytes=2**30), version(1, "a")], "2", "b", "a"),
        ([version(2, "b", memory_bytes=2**29), version(1, "a")], "2", "b", "b"),
        ([version(2, "b", hardware="simulated v100"), version(1, "a")], "2", "b", "a"),
        ([version(2, "b", testbed="cluster"), version(1, "a")], "2", "b", "a"),
    ],
)
def test_the_last_trained_dataset_is_that_of_the_same_retraining(monkeypatch, versions, champion, dataset, trained):
    for each in versions:
        each.is_champion = each.version == champion
    monkeypatch.setattr(lineage, "versions", lambda _: iter(versions))
    config = configure(RetrainingOptions(recipe="smoke", source="tables.csv", testbed="simulated", memory_gb=0.5))
    assert retraining_due.last_trained(SimpleNamespace(settings=None), config, dataset) == trained


def test_a_fixed_model_was_last_trained_as_one_however_many_tables_it_had(monkeypatch):
    versions = [version(2, "b"), version(1, "a", tables_per_task="all")]
    monkeypatch.setattr(lineage, "versions", lambda _: iter(versions))
    options = RetrainingOptions(recipe="smoke", source="tables.csv", testbed="simulated", mode="fixed")
    assert retraining_due.last_trained(SimpleNamespace(settings=None), configure(options), "c") == "a"


@pytest.mark.parametrize(
    ("name", "kind", "hardware", "can"),
    [
        ("auto", "cluster", "NVIDIA H200 x8", True),
        ("cluster:cuda", "cluster", "NVIDIA H200 x8", True),
        ("emulated", "emulated", "NVIDIA H200 for each device, links of h200", True),
        ("emulated:h200", "emulated", "NVIDIA H200 for each device, links of h200", True),
        ("emulated:v100", "emulated", "NVIDIA H200 for each device, links of h200", False),
        ("simulated", "simulated", "simulated rtx2080ti", True),
        ("simulated", "simulated", "simulated v100", False),
        ("simulated", "cluster", "NVIDIA H200 x8", False),
    ],
)
def test_a_testbed_is_known_by_name_as_far_as_it_is_the_same_on_every_machine(name, kind, hardware, can):
    assert retraining_due.is_testbed(name, kind, hardware) is can


def test_of_a_bundled_list_nothing_is_asked_for_and_it_is_said_why():
    waits = watch.reason_to_wait(NEW, "a", replace(WATCHED, source=None), None)
    assert waits is not None
    assert "a bundled list, which does not change" in waits
    assert "DREAMSHARD_SOURCE" in waits


def test_where_nothing_is_under_way_a_failed_retraining_is_said_and_a_new_one_is_due(monkeypatch):
    yesterday = Server(events=[asked(25, "a")])
    monkeypatch.setattr(watching, "get_client", yesterday)
    assert watch.reason_to_wait(NEW, "a", WATCHED, None) is None
    monkeypatch.setattr(watching, "get_client", Server(events=[asked(1, "a"), *yesterday.events]))
    waits = watch.reason_to_wait(NEW, "a", WATCHED, None)
    assert waits is not None
    assert re.search(r"was requested at .* UTC and has not succeeded", waits)


CRASHED = watching.Failing(
    since=datetime.now(UTC), until=datetime.now(UTC), count=1, run="able-ant", is_crash=True, message="gone"
)


@pytest.mark.parametrize(
    ("failing", "hours_ago", "is_due"),
    [
        (CRASHED, [1], True),
        (CRASHED, [1, 2], True),
        (CRASHED, [1, 2, 3], False),  # it will crash again
        (replace(CRASHED, is_crash=False), [1], False),  # it will fail again
        (replace(CRASHED, until=datetime.now(UTC) - timedelta(hours=2)), [1], False),  # one before; this one is to come
    ],
)
def test_a_retraining_that_crashed_is_requested_at_once_but_not_for_ever(monkeypatch, failing, hours_ago, is_due):
    monkeypatch.setattr(watching, "get_client", Server(events=[asked(hours, "a") for hours in hours_ago]))
    assert (watch.reason_to_wait(NEW, "a", WATCHED, failing) is None) is is_due


def ended(state: StateType, hour: int, message: str = "", source: str = "tables.csv"):
    end = datetime(2026, 11, 22, hour, tzinfo=UTC)
    details = SimpleNamespace(message=f"Flow run encountered an exception: ValueError: {message}")
    found = run(state, source, num_devices=8)
    found.end_time, found.state, found.state_name = end, details, "Failed"
    return found


def test_failed_retrainings_since_the_last_success_are_said_with_the_sentence_of_the_last(monkeypatch):
    others = [ended(StateType.FAILED, 9, "of other tables", source="other.csv")]
    runs = [ended(StateType.FAILED, 8, "too little: room"), *others, ended(StateType.CRASHED, 7)]
    earlier = [ended(StateType.COMPLETED, 6), ended(StateType.FAILED, 5)]
    monkeypatch.setattr(watching, "get_client", Server(runs=[*runs, *earlier]))
    failing = watching.find_failures.fn(WATCHED)
    assert failing is not None
    expected = "Retraining has been failing since 2026-11-22 07:00 UTC (2 times, last able-ant): too little: room"
    assert failing.sentence() == expected
    assert (failing.until.hour, failing.is_crash) == (8, False)
    for runs in (earlier, others, []):
        monkeypatch.setattr(watching, "get_client", Server(runs=runs))
        assert watching.find_failures.fn(WATCHED) is None


def test_the_version_in_use_is_the_champion_of_what_is_watched(monkeypatch):
    def tags(hardware: str, devices: int, at: str):
        origin = replace(
            version(1, "a").origin, setting={"testbed": "simulated", "hardware": hardware, "devices": devices}
        )
        change = {"at": at, "alias": "champion", "by": "evaluation", "reason": "first"}
        topology = f"{hardware}, {devices} devices"
        return {lineage.TAG: origin.to_json(), "champion_of": topology, "alias_changes": json.dumps([change])}

    known = {
        "3": tags("simulated v100", 8, "2026-11-22 09:00:00 UTC"),
        "2": tags("simulated rtx2080ti", 8, "2026-11-22 08:00:00 UTC"),
        "1": tags("simulated rtx2080ti", 2, "2026-11-22 07:00:00 UTC"),
    }
    monkeypatch.setattr(version_in_use.registry, "tags_by_version", lambda _: known)
    monkeypatch.setattr(version_in_use.registry, "champion", lambda _: "3")
    config = configure(RetrainingOptions(recipe="smoke", source="tables.csv", testbed="simulated", num_devices=8))
    found = version_in_use.version_in_use(SimpleNamespace(settings=None), config)
    assert found is not None
    assert found.sentence().startswith("Version 2 is in use since 2026-11-22 08:00:00 UTC (simulated rtx2080ti")
    other = configure(RetrainingOptions(recipe="smoke", source="tables.csv", testbed="simulated", num_devices=4))
    assert version_in_use.version_in_use(SimpleNamespace(settings=None), other) is None


def test_the_command_looks_once_says_what_would_start_and_starts_nothing(dreamshard: Dreamshard, tmp_path: Path):
    tables = tmp_path / "tables.csv"
    tables.write_text("name,rows,dim,pooling_factor\n" + "".join(f"t{i},1000,8,2\n" for i in range(20)))
    done = dreamshard("watch", *SMOKE, "--source", str(tables), "--json", home=tmp_path / "home")
    assert done.returncode == 0, done.sentence
    found = json.loads(done.stdout)
    assert (found["matters"], found["emitted"], found["trained"], found["tables_after"]) == (True, False, None, 20)
    assert found["sentence"] == "20 tables, on which no training with these options has ended yet"
    assert (
        found["retraining"]
        == f"Retraining is due: recipe smoke, seed 0, testbed simulated, source {tables}, algorithm dreamshard."
    )
