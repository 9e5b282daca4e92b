"""What doctor says about the scheduled flows."""

import pytest

from flows.cli import scheduled_check
from flows.servers.names import FAILURES
from flows.servers.scheduled_setting import keep
from storage.schedule import FILE, Schedule

DEPLOYED = {"recipe": "default", "seed": 0, "num_devices": 4, "memory_gb": 1.0}


@pytest.fixture
def prefect(monkeypatch):
    """Prefect's answers by path, which a test fills in."""
    answers = {}
    monkeypatch.setattr(scheduled_check, "_answer", lambda _address, path: answers.get(path, []))
    return answers


def found(home, **environ):
    checks = scheduled_check.scheduled(home, {"PREFECT_API_URL": "http://prefect/api", **environ})
    return {check["what"]: check for check in checks}


def test_each_value_is_shown_with_where_it_comes_from_and_what_prefect_has_instead(tmp_path, prefect):
    keep(tmp_path, Schedule(source="/tables.csv", num_devices=4))
    parameters = {**DEPLOYED, "source": "/tables.csv"}
    prefect["deployments/filter"] = [
        {"name": "retrain", "parameters": {**parameters, "num_devices": 8}},
        {"name": "watch", "parameters": parameters},
    ]
    checks = found(tmp_path, DREAMSHARD_MEMORY_GB="1")
    assert checks["scheduled source"]["found"] == "/tables.csv (kept by the home)"
    assert checks["scheduled memory gb"]["found"] == "1.0 (from DREAMSHARD_MEMORY_GB)"
    assert checks["scheduled memory gb"]["state"] == "ok"
    assert checks["scheduled devices"]["found"] == "4 (kept by the home); in Prefect retrain has 8"
    assert checks["scheduled devices"]["state"] == "other"
    assert "scheduled recipe" not in checks


def test_that_nobody_is_told_about_failures_is_said(tmp_path, prefect):
    prefect["deployments/filter"] = [{"name": "retrain", "parameters": DEPLOYED}]
    quiet, watching = (
        {"name": name, "enabled": True, "actions": [{"type": "do-nothing"}]} for name in FAILURES.values()
    )
    telling = {"actions": [{"type": "send-notification"}]}
    prefect["automations/filter"] = [quiet, watching]
    assert found(tmp_path)["failed retrainings"]["found"] == "nobody is notified of failures of retrain and watch"
    assert "DREAMSHARD_NOTIFY" in found(tmp_path)["failed retrainings"]["to do"]
    prefect["automations/filter"] = [quiet | telling, watching | telling]
    assert found(tmp_path)["failed retrainings"]["state"] == "ok"
    prefect["automations/filter"] = [quiet | telling | {"enabled": False}, watching | telling]
    assert found(tmp_path)["failed retrainings"]["found"] == "nobody is notified of failures of retrain"


def test_a_damaged_setting_is_said_with_what_to_do(tmp_path):
    (tmp_path / FILE).write_text('{"devices": 8}')
    check = found(tmp_path)["scheduled flows"]
    assert "(devices: " in check["found"]
    assert check["to do"].startswith("remove it")


def test_where_nothing_is_set_it_is_said_how(tmp_path, prefect):
    (check,) = found(tmp_path).values()
    assert "--source" in check["to do"]
