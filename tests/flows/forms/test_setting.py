"""The team's setting: what a wrong one says, and which options take it."""

import pytest

from flows.forms import setting
from flows.forms.options import CompareOptions, RetrainOptions, StageOptions
from flows.forms.setting import checked, with_setting

TEAM = {"source": "/tables.csv", "num_devices": 8, "algorithm": "paper"}


@pytest.mark.parametrize("wrong", [{"devices": 8}, {"num_devices": 0}, {"mode": "both"}, [8]])
def test_a_wrong_setting_says_where_and_what_to_correct(wrong):
    with pytest.raises(ValueError, match="correct Prefect's variable dreamshard"):
        checked(wrong)


def test_a_source_is_kept_as_it_is_known_everywhere():
    assert checked({"source": "file:///tmp/./tables.csv"}) == {"source": "/tmp/tables.csv"}


def test_empty_fields_of_a_training_take_the_setting_and_a_comparison_keeps_its_own(monkeypatch):
    monkeypatch.setattr(setting, "read_setting", lambda: TEAM)
    monkeypatch.setattr(setting.FlowRunContext, "get", lambda: "a run")
    taken = with_setting(RetrainOptions(num_devices=4, seed=1))
    assert taken == RetrainOptions(source="/tables.csv", num_devices=4, seed=1, algorithm="paper")
    assert with_setting(StageOptions()) == StageOptions(num_devices=8, algorithm="paper")
    assert with_setting(CompareOptions(versions=["1", "2"])) == CompareOptions(versions=["1", "2"])
