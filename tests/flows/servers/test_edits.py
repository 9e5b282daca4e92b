"""What was edited in Prefect's UI stays, unless an option changed since the last deployment."""

import pytest

from flows.servers.edits import merged, record_of

DEPLOYED = {"parameters.num_devices": 2, "parameters.memory_gb": 1, "schedules.nightly": {"active": True}}


@pytest.mark.parametrize(
    ("current", "wanted", "facts", "kept"),
    [
        (DEPLOYED, DEPLOYED, DEPLOYED, []),
        ({**DEPLOYED, "parameters.num_devices": 8}, DEPLOYED, {**DEPLOYED, "parameters.num_devices": 8}, [8]),
        (DEPLOYED, {**DEPLOYED, "parameters.num_devices": 4}, {**DEPLOYED, "parameters.num_devices": 4}, []),
        ({**DEPLOYED, "parameters.num_devices": 8}, {**DEPLOYED, "parameters.num_devices": 4}, {"num": 4}, []),
        ({**DEPLOYED, "parameters.num_devices": 8}, {**DEPLOYED, "parameters.num_devices": None}, {"num": None}, []),
        ({**DEPLOYED, "parameters.num_devices": None}, DEPLOYED, {"num": None}, [None]),
        ({**DEPLOYED, "parameters.iterations": 1}, DEPLOYED, {**DEPLOYED, "parameters.iterations": 1}, [1]),
        ({**DEPLOYED, "parameters.memory_gb": 1.0}, DEPLOYED, DEPLOYED, []),  # as a form writes it
        (DEPLOYED, {**DEPLOYED, "description": "new"}, {**DEPLOYED, "description": "new"}, []),
        (
            {**DEPLOYED, "schedules.nightly": None},
            DEPLOYED,
            {name: value for name, value in DEPLOYED.items() if name != "schedules.nightly"},
            [None],
        ),
    ],
)
def test_an_edit_stays_unless_what_is_to_be_deployed_changed_too(current, wanted, facts, kept):
    result, edits = merged("retrain", record_of(DEPLOYED), current, wanted)
    if "num" in facts:
        assert result.get("parameters.num_devices") == facts["num"]
    else:
        assert result == facts
    assert [edit.value for edit in edits] == kept


def test_an_edit_is_still_one_at_the_next_deployment():
    edited = {**DEPLOYED, "parameters.num_devices": 8}
    result, _ = merged("retrain", record_of(DEPLOYED), edited, DEPLOYED)
    again, edits = merged("retrain", record_of(DEPLOYED), result, DEPLOYED)
    assert again == result
    assert [edit.sentence() for edit in edits] == ["retrain: num_devices 8 (deployed: 2)"]


def test_edits_are_said_in_words():
    current = {"schedules.nightly": {"active": False}, "paused": True}
    _, edits = merged("retrain", record_of(DEPLOYED), current, DEPLOYED)
    assert {edit.sentence() for edit in edits} == {
        "retrain: num_devices empty (deployed: 2)",
        "retrain: memory_gb empty (deployed: 1)",
        "retrain: schedule nightly paused",
        "retrain: paused",
    }
