"""The sweep's figures in RESULTS.md are those of the kept cells."""

import math
import shutil
from dataclasses import replace

import pytest

from dreamshard.sweep import Cell, Size, Sweep
from flows.cli.sweep import replaced_section
from storage.lake.parquet_files import read_parquet
from storage.lake.sweep_results import write_results
from tests.benchmarks import renewed_sweep
from tests.benchmarks.cells_of_home import take
from tests.benchmarks.kept_sweep import FOLDER, README, RESULTS, _parts, excerpt, kept_results, section
from tests.benchmarks.renewed_sweep import renewed_systems
from tests.helpers.sweep import cell_result

SIZE = Size(6, 2)
CELL = Cell(
    experiment="sizes",
    trained=SIZE,
    placed=(SIZE,),
    systems=("random", "dim_greedy"),
    seed=0,
    split="test",
    num_tasks=2,
)
CELLS = (CELL, replace(CELL, seed=1), replace(CELL, experiment="transfer"))
SWEEP = Sweep(name="tiny", cells=CELLS)


def done(home, cell, commit, systems=CELL.systems):
    """Results of a cell in a home, one file for each commit."""
    rows = [cell_result(placer=placer, task=f"task-{task}") for placer in systems for task in range(2)]
    path = home / "lake" / "sweeps" / "tiny" / f"{cell.name}-{commit.replace('-', '')}.parquet"
    write_results(path, "tiny", cell.name, commit, rows)
    return path.name


def kept(folder):
    return {path.name for path in folder.iterdir()}


def test_the_sweeps_figures_are_those_of_the_kept_cells():
    text = RESULTS.read_text(encoding="utf-8")
    shown = text.partition("<!-- sweep -->")[2].partition("<!-- /sweep -->")[0]
    pictures = {
        line.partition("[")[2].partition("]")[0]: line.partition("(")[2].rstrip(")")
        for line in shown.splitlines()
        if line.startswith("![")
    }
    assert replaced_section(text, section(pictures), RESULTS) == text
    for address in pictures.values():
        assert (RESULTS.parent / address).is_file()


def test_the_excerpt_in_the_readme_is_of_the_kept_cells():
    text = README.read_text(encoding="utf-8")
    assert replaced_section(text, excerpt(), README) == text


def test_a_file_of_no_cell_of_the_sweep_is_refused(tmp_path):
    file = min(FOLDER.glob("*.parquet"))
    shutil.copy(file, tmp_path / "sizes-dim16-7x7-m100-test-s0-0123456789abcdef.parquet")
    with pytest.raises(ValueError, match="is of no cell of the sweep"):
        kept_results(tmp_path)


def test_systems_that_ran_again_replace_theirs_and_keep_their_times(tmp_path, monkeypatch):
    cell = replace(CELL, systems=("random", "dim_greedy", "cost_greedy", "dreamshard"))
    assert renewed_systems(cell) == ("dreamshard", "cost_greedy")
    path = tmp_path / f"{cell.name}-0123456789abcdef.parquet"
    before = [cell_result(placer=placer, task="t", overall_ms=2.0, place_ms=3.0) for placer in cell.systems[:3]]
    write_results(path, "tiny", cell.name, "aaaa", [replace(row, placed=str(SIZE)) for row in before])
    asked = []

    def run(cell):
        asked.append(cell.systems)
        rows = [cell_result(placer=placer, task="t", overall_ms=1.0, place_ms=9.0) for placer in cell.systems]
        return [replace(row, placed=str(SIZE)) for row in rows]

    monkeypatch.setattr(renewed_sweep, "run_cell", run)
    monkeypatch.setattr(renewed_sweep, "source_revision", lambda: "bbbb")
    renewed_sweep.renew(cell, path)
    assert asked == [("dreamshard", "cost_greedy")]
    (found,) = tmp_path.iterdir()
    rows = read_parquet(found).to_pylist()
    assert [(row["placer"], row["overall_ms"], row["commit"]) for row in rows] == [
        ("random", 2.0, "aaaa"),
        ("dim_greedy", 2.0, "aaaa"),
        ("cost_greedy", 1.0, "bbbb"),
        ("dreamshard", 1.0, "bbbb"),
    ]
    assert [row["place_ms"] for row in rows[:3]] == [3.0] * 3
    assert math.isnan(rows[3]["place_ms"]), "a time of another machine is not comparable"
    assert renewed_sweep._is_of("bbbb", cell, found)
    renewed_sweep.renew(cell, found)
    assert found.exists()


def test_a_page_of_two_commits_says_which_systems_are_of_which():
    of = {("sizes", "random"): "aaaa", ("sizes", "dreamshard"): "bbbb", ("transfer", "dreamshard"): "aaaa"}
    assert _parts(of) == {
        "sizes: dreamshard and all that share its training": "bbbb",
        "sizes: the others, and all times": "aaaa",
        "transfer": "aaaa",
    }


def test_an_experiment_that_a_home_completes_replaces_the_kept_one_and_no_other(tmp_path):
    home, folder = tmp_path / "home", tmp_path / "kept"
    folder.mkdir()
    for cell in CELLS:
        shutil.copy(home / "lake" / "sweeps" / "tiny" / done(home, cell, "aaaa"), folder)
    old = kept(folder)
    new = {done(home, CELLS[0], "bbbb"), done(home, CELLS[1], "bbbb")}
    done(home, CELLS[2], "cccc-dirty")
    done(home, CELLS[2], "dddd", systems=("random",))  # of the short form
    (home / "lake" / "sweeps" / "tiny" / next(name for name in old if "transfer" in name)).unlink()
    said = take(home, SWEEP, folder)
    assert said[0] == "sizes: took 2 cells of commit bbbb"
    assert (
        said[1]
        == "transfer: kept as it was, since the home has no cell of a commit with all systems and tasks of the present design"
    )
    assert kept(folder) == new | {name for name in old if "transfer" in name}


def test_cells_of_different_commits_do_not_complete_an_experiment(tmp_path):
    home, folder = tmp_path / "home", tmp_path / "kept"
    folder.mkdir()
    for cell, commit in zip(CELLS, ("aaaa", "bbbb", "aaaa"), strict=True):
        shutil.copy(home / "lake" / "sweeps" / "tiny" / done(home, cell, commit), folder)
    done(home, CELLS[2], "bbbb")
    said = take(home, SWEEP, folder)
    assert said[0] == f"sizes: kept as it was, since commit aaaa lacks 1 of 2 cells, first {CELLS[1].name}"
    assert said[1] == "transfer: took 1 cells of commit bbbb"


def test_a_home_that_completes_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no cells of the sweep tiny"):
        take(tmp_path, SWEEP, tmp_path / "kept")
    done(tmp_path, CELLS[0], "aaaa-dirty")
    with pytest.raises(ValueError, match="completes no experiment, so nothing was replaced"):
        take(tmp_path, SWEEP, tmp_path / "kept")
