import pytest

from dreamshard.constraints import Constraints, parse_constraints
from dreamshard.tables import SHARDING_TYPES
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import tables_of

TABLES = ("big", "other", "a", "b", "c", "d", "hot")
EVERYTHING = """
pin: {big: 0, other: [1, 0]}
exclude: {c: [0, 1]}
exclude_devices: [3]
together: [[a, b]]
apart: [[c, d]]
memory_gb: {0: 60, 1: 40.5}
reserve_gb: 8
sharding_types: {default: columns, hot: [row_wise, table_wise]}
narrowest_columns: {d: 64}
cache: true
"""


def parse(text, num_devices=4):
    return parse_constraints(text, TABLES, num_devices)


def test_a_file_says_all_that_constraints_hold(tmp_path):
    path = tmp_path / "constraints.yaml"
    path.write_text(EVERYTHING)
    assert parse_constraints(path, TABLES, 4) == Constraints(
        sharding_types=("table_wise", "column_wise"),
        sharding_types_of={"hot": ("table_wise", "row_wise")},
        caching=True,
        narrowest_columns_of={"d": 64},
        pinned={"big": (0,), "other": (0, 1), "c": (2, 3)},
        together=(frozenset("ab"),),
        apart=(frozenset("cd"),),
        memory_bytes_of={0: 60 * 2**30, 1: 81 * 2**29, 3: 0},
        reserve_bytes=8 * 2**30,
    )


def test_json_is_read_and_keeps_the_types_it_does_not_name():
    read = parse_constraints('{"memory_gb": [1, 2], "cache": {"a": 0.25}}', TABLES, 2, SHARDING_TYPES)
    assert read == Constraints(
        sharding_types=SHARDING_TYPES, memory_bytes_of={0: 2**30, 1: 2**31}, cached_share_of={"a": 0.25}
    )
    assert parse("") == Constraints()


WRONG = (
    "pins: {big: 0} | pin: {bigg: 0} | pin: {hot: 4} | exclude_devices: [-1] | memory_gb: [1, 2, 3] | reserve_gb: -1"
)
WRONG += " | pin: {big: zero} | cache: {a: 1.5} | sharding_types: {hot: by_row} | pin: {big: 0}\npin: {hot: 1}"
CONTRADICTIONS = "{pin: {big: 0}, exclude: {big: 0}} | exclude_devices: [0, 1, 2, 3] | reserve_gb: 1"
CONTRADICTIONS += " | {apart: [[a, b]], pin: {a: 0, b: 0}} | {apart: [[a, b, c, d, big]]}"
CONTRADICTIONS += " | {together: [[a, b]], apart: [[a, b, c]]} | {together: [[a, b]], pin: {a: 0, b: 1}}"
CONTRADICTIONS += " | {together: [[a, hot]], sharding_types: {hot: data_parallel}}"


@pytest.mark.parametrize("text", WRONG.split(" | "))
def test_what_is_wrong_is_refused_with_the_reason(text):
    with pytest.raises(ValueError):
        parse(text)


@pytest.mark.parametrize("text", CONTRADICTIONS.split(" | "))
def test_a_task_refuses_constraints_that_contradict_one_another(text):
    PlacementTask(tables_of([10]), 4, 2**20, constraints=Constraints(pinned={"elsewhere": ()}))
    with pytest.raises(ValueError):
        PlacementTask(tables_of([10] * len(TABLES), names=TABLES), 4, 2**20, constraints=parse(text))


def test_unknown_precisions_and_optimizers_are_refused_by_name():
    for field, wrong in {"precision": "FP32", "precision_of": {"t0": "fp8"}, "optimizer": "ftrl"}.items():
        task = PlacementTask(tables_of([10]), 4, 2**20)
        object.__setattr__(task, field, wrong)  # past the tests' type checker
        with pytest.raises(ValueError, match=field.removesuffix("_of")):
            task.__post_init__()
