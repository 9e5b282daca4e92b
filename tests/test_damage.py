"""Damaged inputs are named by their seed alone."""

from random import Random

from tests.helpers.damage import VALUES, damaged_json


def test_a_seed_gives_the_same_inputs_whatever_was_damaged_before():
    def drawn() -> list[bytes]:
        draw = Random("a seed")
        return [damaged_json({"a": [1, {"b": [2]}], "c": {}}, draw) for _ in range(2000)]

    before = repr(VALUES)
    assert drawn() == drawn()
    assert repr(VALUES) == before
