"""Which placer to trust, in words: it is said where a rival is cheaper, and where ours finds nothing."""

from dataclasses import replace

from dreamshard.sweep import CellResult
from dreamshard.sweep.verdicts import compare, sentences
from tests.helpers.sweep import cell_result


def results(**costs: float | None) -> list[CellResult]:
    """The same cost of a placer for each of two seeds and four tasks."""
    return [
        cell_result(placer=placer, seed=seed, task=f"task-{task}", overall_ms=cost, compute_ms=cost)
        for placer, cost in {"dim_greedy": 10.0, **costs}.items()
        for seed in (0, 1)
        for task in range(4)
    ]


def said(*rows: CellResult) -> str:
    return "\n".join(sentences(compare(rows)))


def test_a_rival_that_is_cheaper_is_named_with_its_interval():
    text = said(*results(dreamshard=9.0, neuroshard=8.0, neuroshard_columns=1.0))
    assert "the cheapest beyond doubt in 0, " in text
    assert "**a rival is cheaper** at 8x2 (trust neuroshard; dreamshard costs 12.5 % (12.5 to 12.5) more)" in text
    assert "neuroshard_columns" not in text, "whole tables are compared with whole tables"


def test_settings_are_counted_by_their_standing():
    cheaper = results(dreamshard=5.0)
    no_room = [replace(each, placed="12x4") for each in results(dreamshard=None)]
    alike = [replace(each, experiment="transfer", placed="16x4") for each in results(dreamshard=10.0)]
    text = said(*cheaper, *no_room, *alike)
    assert "Of 3 settings, `dreamshard` is the cheapest beyond doubt in 1, as good" in text
    assert "found no placement for some task** at 8x2 to 12x4 (trust dim_greedy)" in text
    assert "- transfer, dim16: no clear difference at 8x2 to 16x4 (saves 0.0 % (0.0 to 0.0) over dim_greedy)." in text


def test_settings_with_the_same_rival_are_named_together():
    rows = [*results(dreamshard=5.0), *(replace(each, placed="12x4") for each in results(dreamshard=8.0))]
    assert "dreamshard is the cheapest at 8x2, 8x2 to 12x4 (saves 20.0 to 50.0 % over dim_greedy)." in said(*rows)


def test_many_settings_that_are_alike_are_not_listed():
    many = [replace(each, placed=f"{size}x4") for size in range(10, 15) for each in results(dreamshard=8.0)]
    assert said(*many).endswith("dreamshard is the cheapest everywhere (saves 20.0 to 20.0 % over dim_greedy).\n")
    text = said(*results(dreamshard=10.0), *many)
    assert "no clear difference at 8x2 (saves" in text
    assert text.endswith("; dreamshard is the cheapest elsewhere (saves 20.0 to 20.0 % over dim_greedy).\n")


def test_a_part_of_ours_is_no_rival_of_it():
    text = said(*results(dreamshard=9.0, dreamshard_without_policy=8.0))
    assert "over dim_greedy" in text
    assert "without_policy" not in text


def test_a_placer_by_columns_is_not_judged_where_no_other_splits_tables():
    alone = results(dreamshard=9.0, dreamshard_columns=8.0)
    assert [each.ours for each in compare(alone)] == ["dreamshard"]
    assert [each.ours for each in compare([*alone, *results(neuroshard_columns=None)])][1:] == ["dreamshard_columns"]


def test_ablations_are_no_placers_to_choose_from():
    assert compare([replace(each, experiment="ablations") for each in results(dreamshard=9.0)]) == []


def test_it_is_said_whether_ours_alone_fits_all_tasks_or_nobody_does():
    assert "no other placer fits all tasks at 8x2" in said(*results(dreamshard=9.0, dim_greedy=None))
    assert "no placer of this kind fits all tasks at 8x2" in said(*results(dreamshard=None, dim_greedy=None))
