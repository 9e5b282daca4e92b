"""The command that runs long trials: a table of each, and a failure wherever anything was not survived."""

import json
import os
import random

import pytest

from tests.chaos import fuzzed
from tests.chaos.__main__ import MARKER, main, table
from tests.chaos.kills import Found
from tests.chaos.survived import Survived
from tests.chaos.trials import SHORT, all_tried, names, trial, tried
from tests.helpers.damaged_reading import Reader
from tests.helpers.marked_tables import write
from tests.helpers.moments import Moment
from tests.helpers.placer_properties import PLACERS

HELD = Survived(what="kills", tried=1200, survived=1200, note="seed 3")


def breaks(_scale, _seed):
    raise ValueError("two | lines\nof text")


def test_a_row_says_how_often_it_held():
    assert table([HELD])[-1] == "| kills | 1,200 | 1,200 | seed 3 |"


def test_a_trial_that_breaks_is_a_row_that_was_not_survived():
    [row] = tried("kills", 1.0, 0, lambda _: breaks)
    assert (row.tried, row.survived) == (1, 0)
    assert table([row])[-1].endswith("| ValueError: two \\| lines of text |")


def test_trials_at_once_have_processes_of_their_own():
    found = {name: rows for name, rows, _ in all_tried({"kills of nothing": 1.0, "nor this": 1.0}, 0, jobs=2)}
    assert {name: rows[0].note.partition(":")[0] for name, rows in found.items()} == {
        "kills of nothing": "ModuleNotFoundError",
        "nor this": "ModuleNotFoundError",
    }


def test_a_trial_that_only_computes_runs_beside_the_others():
    found = {name: rows for name, rows, _ in all_tried({"guided": 1e-9, "kills of nothing": 1.0}, 0, jobs=1)}
    assert found["kills of nothing"][0].note.startswith("ModuleNotFoundError")
    assert found["guided"][0].what.startswith("led by coverage")


def test_tables_are_replaced_in_the_page_and_others_stay(tmp_path):
    page = tmp_path / "survived.md"
    page.write_text(f"before\n\n{MARKER}\n\n## kills\n\nold\n\n## readers\n\nkept\n\n{MARKER}\nafter\n")
    write(page, MARKER, "##", {"kills": ["## kills", "", *table([HELD])]})
    text = page.read_text()
    assert "old" not in text
    assert "kept" in text
    assert text.startswith("before\n")
    assert text.endswith(f"{MARKER}\nafter\n")
    write(page, MARKER, "##", {"kills": ["## kills", "", *table([HELD])]})
    assert page.read_text() == text, "written again, the same"


def test_a_page_without_markers_is_refused(tmp_path):
    page = tmp_path / "survived.md"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="0 markers"):
        write(page, MARKER, "##", {})


def test_placers_are_tried_by_the_command(capsys, monkeypatch):
    assert {"kills", "placers"} <= set(names())
    assert "test_trials" not in names()
    monkeypatch.setattr("tests.chaos.placers.PLACERS", {"size_greedy": PLACERS["size_greedy"]})
    assert main(["placers", "--scale", "0.01", "--seed", "5"]) == 0
    printed = capsys.readouterr().out
    assert "placers (seed 5)" in printed
    assert "| random tasks placed by `size_greedy` | 1 | 1 |" in printed


def test_every_trial_has_a_share_of_the_short_form(capsys, monkeypatch):
    assert sorted(SHORT) == names()
    monkeypatch.setattr("tests.chaos.placers.PLACERS", {"size_greedy": PLACERS["size_greedy"]})
    assert main(["placers", "--short", "--seed", "5"]) == 0
    assert f"| {round(40 * SHORT['placers'])} |" in capsys.readouterr().out


def test_a_share_of_nothing_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["placers", "--scale", "0"])
    assert "would try nothing" in capsys.readouterr().err


def test_homes_are_killed_in_the_stages_that_were_hit_least_in_the_order_of_the_chain():
    found, stages, draw = Found(), ["start", "ingest", "train", "promote"], random.Random(0)
    found.add(["promote", "start", "promote"], {}, "home-1")
    assert found.targets(stages, 3, draw) == ["start", "ingest", "train"]
    assert found.targets(stages, 2, draw) == ["ingest", "train"]


def test_a_kill_comes_some_seconds_into_its_stage_or_when_that_is_over(monkeypatch, tmp_path):
    now = {"stage": "start", "s": 0.0}
    monkeypatch.setattr("tests.helpers.moments.stage_of", lambda _home, _since: now["stage"])
    monkeypatch.setattr("tests.helpers.moments.time.monotonic", lambda: now["s"])

    def comes(*moments):
        moment = Moment(tmp_path, 0.0, ["start", "ingest", "train"], "ingest", 2.0)
        answers = []
        for now["stage"], now["s"] in moments:
            answers.append(moment.has_come())
        return answers

    assert comes(("start", 5), ("ingest", 6), ("ingest", 7.9), ("ingest", 8)) == [False, False, False, True]
    assert comes(("ingest", 6), ("start", 6.1)) == [False, True], "it was short"
    assert comes(("start", 5), ("train", 6)) == [False, True], "it was skipped"


def test_input_led_by_coverage_says_where_it_was_not_tried(monkeypatch):
    monkeypatch.setattr("tests.chaos.guided.importlib.util.find_spec", lambda _: None)
    [row] = trial("guided")(1.0, 0)
    assert (row.tried, row.note) == (0, "not tried: atheris is not installed")


def test_what_was_not_tried_is_named_in_the_last_line(monkeypatch, capsys):
    monkeypatch.setattr("tests.chaos.guided.importlib.util.find_spec", lambda _: None)
    assert main(["guided", "--seed", "1", "--jobs", "1"]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last == "NOT everything was tried: guided (not tried: atheris is not installed)"


def test_wrong_content_that_is_not_survived_is_found_made_small_and_kept(monkeypatch, tmp_path):
    valid = (json.dumps({"a": {"b": 1, "c": [2, 3]}}).encode(),)
    found = {
        "sound": Reader("sound", ".json", valid, lambda path: json.loads(path.read_bytes())),
        "trusting": Reader("trusting", ".json", valid, lambda path: json.loads(path.read_bytes())["a"]["c"]),
        "dying": Reader("dying", ".json", valid, lambda path: b'"c"' in path.read_bytes() or os._exit(3)),
    }
    monkeypatch.setattr(fuzzed, "known", lambda: found)
    monkeypatch.setattr("tests.helpers.damaged_reading.tempfile.gettempdir", lambda: str(tmp_path))
    rows = {row.what.removeprefix("wrong content: "): row for row in fuzzed.run(0.03, 7)}
    assert (rows["sound"].tried, rows["sound"].survived) == (300, 300)
    assert rows["trusting"].survived == rows["trusting"].tried - 1
    assert "Error in " in rows["trusting"].note
    with pytest.raises((KeyError, TypeError, IndexError)):
        found["trusting"].read(tmp_path / "dreamshard-fuzzed-trusting.json")
    assert rows["dying"].note.startswith("ends the process (3)")
    assert b'"c"' not in (tmp_path / "dreamshard-fuzzed-dying.json").read_bytes()
