"""What `prefect.yaml` declares, with the setting of the scheduled flows."""

import dataclasses

from flows.forms.options import RetrainingOptions
from flows.servers.wanted import declared_deployments
from storage.schedule import Schedule


def test_the_scheduled_flows_take_the_setting_and_the_others_stay_as_declared():
    wanted = {each.name: each for each in declared_deployments(Schedule(source="/tables.csv", num_devices=4))}
    for name in ("retrain", "watch"):
        facts = wanted[name].facts()
        parameters = {fact: value for fact, value in facts.items() if fact.startswith("parameters.")}
        assert parameters == {"parameters.source": "/tables.csv", "parameters.num_devices": 4}, name
        assert wanted[name].without_setting().parameters == {"recipe": "default", "seed": 0}
    assert "parameters.source" not in wanted["ingest"].facts()
    assert wanted["retrain"].facts()["schedules.nightly"] == {
        "timing": {"cron": "0 3 * * *", "timezone": "UTC", "day_or": True},
        "active": True,
        "parameters": {"full": True},
    }
    (trigger,) = wanted["retrain"].triggers
    assert set(trigger["parameters"]) == {field.name for field in dataclasses.fields(RetrainingOptions)}
