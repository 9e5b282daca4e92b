"""Which retrainings are the same."""

from flows.decisions.retraining_due import is_same_retraining


def test_another_value_of_any_field_of_the_setting_is_another_retraining_and_the_seed_is_none():
    one = {"recipe": "default", "source": "/tables.csv", "mode": "auto", "seed": 0}
    assert is_same_retraining(one, {"recipe": "default", "source": "/./tables.csv", "seed": 1})
    for name, value in {"exchange_devices": "8,16", "reserve_gb": 1.0, "batch_size": 512, "algorithm": "paper"}.items():
        assert not is_same_retraining(one, {**one, name: value}), name


def test_an_algorithm_that_is_left_out_is_the_recipe_s():
    published = {"recipe": "paper_50x4", "source": "/tables.csv"}
    assert is_same_retraining(published, {**published, "algorithm": "paper"})
    assert not is_same_retraining(published, {**published, "algorithm": "dreamshard"})
    assert is_same_retraining({"source": "/tables.csv"}, {"source": "/tables.csv", "algorithm": "dreamshard"})
