"""Damaged inputs are named by their seed alone."""

import inspect
import sys
from random import Random

from tests.helpers.damage import VALUES, damaged_json


def test_a_seed_gives_the_same_inputs_whatever_was_damaged_before():
    def drawn() -> list[bytes]:
        draw = Random("a seed")
        return [damaged_json({"a": [1, {"b": [2]}], "c": {}}, draw) for _ in range(2000)]

    before = repr(VALUES)
    assert drawn() == drawn()
    assert repr(VALUES) == before


def test_inputs_never_end_however_deep_one_nests():
    draw, limit = Random("a seed"), sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 300)
    try:
        found = [damaged_json({"a": [1, {"b": [2, 3]}], "c": "text"}, draw) for _ in range(2000)]
    finally:
        sys.setrecursionlimit(limit)
    assert all(found)
