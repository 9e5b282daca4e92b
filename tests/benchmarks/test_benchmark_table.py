"""The command that runs benchmarks: one table each, and a failed benchmark is one row."""

import pytest

from tests.benchmarks.__main__ import MARKER, line, names, printed
from tests.helpers.marked_tables import write


def fine():
    yield {"name": "speed", "value": 3.14159, "unit": "ms", "bar": 6.0, "ratio": 1.91}


def breaks_after_a_row():
    yield {"name": "first", "value": 1}
    raise ValueError("two | lines\nof text")


def takes_quick(quick=False):
    return [{"name": "quick" if quick else "slow"}]


ALL = {"fine": fine, "breaks": breaks_after_a_row, "quick": takes_quick}


def test_missing_keys_are_empty_cells():
    assert line({"name": "speed", "value": 3.14159, "unit": "ms", "bar": 6.0}) == "| speed | 3.142 ms | 6 |  |  |"
    assert line({"name": "nothing"}) == "| nothing |  |  |  |  |"


def test_a_benchmark_that_breaks_is_a_row_and_the_others_go_on(capsys):
    tables, well = printed(["breaks", "fine"], quick=False, load=ALL.__getitem__)
    assert not well
    rows = ["| first | 1 |  |  |  |", "| breaks | failed: ValueError: two \\| lines of text | | | |"]
    assert tables["breaks"][4:6] == rows
    assert tables["fine"][4].startswith("| speed |")
    assert capsys.readouterr().out.splitlines() == [*tables["breaks"], "", *tables["fine"], ""]


def test_all_well_is_said():
    assert printed(["fine"], quick=False, load=ALL.__getitem__)[1]


def test_quick_reaches_the_benchmarks_that_know_it():
    tables, well = printed(["quick", "fine"], quick=True, load=ALL.__getitem__)
    assert well
    assert tables["quick"][4] == "| quick |  |  |  |  |"


def test_writing_replaces_what_is_between_the_markers_and_nothing_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARKER}\nold\n{MARKER}\nafter\n")
    write(page, MARKER, "###", {"b": ["### b", "| new |"]})
    assert page.read_text() == f"before\n{MARKER}\n### b\n| new |\n{MARKER}\nafter\n"


def test_writing_some_tables_leaves_the_others(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"{MARKER}\n{MARKER}")
    write(page, MARKER, "###", {"b": ["### b", "| b 1 |"], "c": ["### c", "| c 1 |"]})
    write(page, MARKER, "###", {"c": ["### c", "| c 2 |"], "a": ["### a", "| a 1 |"]})
    assert page.read_text() == f"{MARKER}\n### a\n| a 1 |\n\n### b\n| b 1 |\n\n### c\n| c 2 |\n{MARKER}"


def test_a_page_without_a_place_for_the_table_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"only one {MARKER}\n")
    with pytest.raises(ValueError, match="1 markers"):
        write(page, MARKER, "###", {"b": ["### b"]})
    assert page.read_text() == f"only one {MARKER}\n"


def test_every_benchmark_file_is_found():
    assert {"training", "placing", "quality", "cost_network"} <= set(names())
