"""`dreamshard sweep`: figures in the lake, MLflow and a file; what was done before is not done again."""

import json
from dataclasses import replace

import pytest

from dreamshard.sweep import SWEEPS, Cell, CellResult, Size, Sweep, run_cell
from flows.cli.sweep import replaced_section
from flows.runtime.own_processes import OwnProcesses
from tests.flows.commands import failed_with, runner

pytestmark = pytest.mark.flow


def tiny(*, short: bool, split: str) -> Sweep:
    size = Size(6, 2)
    rules = ("size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")
    cells = [
        Cell(
            experiment="sizes",
            trained=size,
            placed=(size,),
            systems=(*rules, "torchrec_planner"),
            seed=seed,
            split=split,
            num_tasks=2,
        )
        for seed in ((0,) if short else (0, 1))
    ]
    if not short:
        cells.append(replace(cells[0], experiment="transfer", placed=(Size(8, 2),)))
    return Sweep(name="tiny", cells=tuple(cells))


@pytest.fixture(scope="module")
def dreamshard():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SWEEPS, "tiny", tiny)
        patch.setitem(SWEEPS, "failing", failing)
        yield runner(patch)


def test_a_sweep_goes_on_where_it_ended_and_its_figures_are_everywhere(dreamshard, tmp_path):
    short = dreamshard("sweep", "--recipe", "tiny", "--short", "--json", home=tmp_path)
    assert short.returncode == 0, short.sentence
    assert json.loads(short.stdout)["cells"] == 1
    other = dreamshard("sweep", "--recipe", "tiny", "--experiments", "transfer", "--json", home=tmp_path)
    assert other.returncode == 0, other.sentence
    outcome = json.loads(other.stdout)
    assert outcome["markdown"].startswith("Sweep `tiny`, 2 of 3 cells, at ")  # with what was done before

    page = tmp_path / "RESULTS.md"
    page.write_text("before\n<!-- sweep -->\nold\n<!-- /sweep -->\nafter\n")
    done = dreamshard("sweep", "--recipe", "tiny", "--write", str(page), home=tmp_path)
    assert done.returncode == 0, done.sentence
    assert "2 of 3 cells were done before" in done.stderr
    text = page.read_text()
    assert text.startswith("before\n<!-- sweep -->\n\nSweep `tiny`, 3 cells, at ")
    assert text.endswith("<!-- /sweep -->\nafter\n")
    assert "old" not in text
    assert "**dim16** (2 tasks x 2 seeds; best rule: " in text
    assert "![sizes](docs/pictures/sweep-sizes.svg)" in text
    assert (tmp_path / "docs" / "pictures" / "sweep-times.svg").read_text().startswith("<?xml")

    query = "select placer, count(*) as n, count(overall_ms) as fits from sweep_results group by 1 order by 1"
    rows = json.loads(dreamshard("sql", query, "--json", home=tmp_path).stdout)
    assert {row["placer"]: (row["n"], row["fits"]) for row in rows}["torchrec_planner"] == (6, 6)

    from storage.mlflow_store import runs
    from storage.store import open_store

    settings = open_store().settings
    found = runs.client(settings).search_runs([runs.experiment_id(runs.client(settings), settings)])
    names = {name for run in found for name in run.data.metrics}
    assert "gain.sizes.meta-dlrm-2021.dim16.6x2.6x2.100.torchrec_planner" in names


def test_a_cell_gives_the_same_in_a_process_of_its_own():
    (cell,) = tiny(short=True, split="validation").cells
    cell = replace(cell, systems=(*cell.systems, "cost_greedy"), measurements=2)
    with OwnProcesses() as processes:
        elsewhere = processes.run(run_cell, cell)
    assert [costs(each) for each in elsewhere] == [costs(each) for each in run_cell(cell)]


def costs(result: CellResult) -> tuple[object, ...]:
    return result.placer, result.task, result.overall_ms, result.dreamshard_ms, result.measurements


def failing(*, short: bool, split: str) -> Sweep:
    """One cell whose system there is not, and one that works."""
    (works,) = tiny(short=True, split=split).cells
    return Sweep(name="failing", cells=(replace(works, seed=7, systems=("size_greedy", "none")), works))


def test_a_cell_that_fails_is_named_at_the_end_and_loses_no_other(dreamshard, tmp_path):
    for _ in range(2):
        failed_with(
            dreamshard("sweep", "--recipe", "failing", "--workers", "2", home=tmp_path),
            "1 of 2 cells failed",
            "sizes-dim16-6x2-m100-validation-s7: there is no system 'none'",
            "the same command tries only these again",
        )
    query = "select count(distinct cell) as cells, count(*) as n from sweep_results"
    assert json.loads(dreamshard("sql", query, "--json", home=tmp_path).stdout) == [{"cells": 1, "n": 10}]


def test_what_cannot_be_done_is_refused_before_hours_of_work(dreamshard, tmp_path, monkeypatch):
    from flows.cli import in_process

    monkeypatch.setattr(in_process, "in_process", None)  # no server starts
    failed_with(dreamshard("sweep", "--recipe", "none", home=tmp_path), "there is no sweep 'none'")
    failed_with(
        dreamshard("sweep", "--write", str(tmp_path / "no.md"), home=tmp_path), "there is no file", "check the path"
    )
    failed_with(
        dreamshard("sweep", "--recipe", "tiny", "--experiments", "sizes,size", home=tmp_path),
        "the sweep tiny has no experiment 'size'",
        "choose from sizes",
    )
    page = tmp_path / "page.md"
    page.write_text("no place")
    failed_with(dreamshard("sweep", "--recipe", "tiny", "--write", str(page), home=tmp_path), "<!-- sweep -->")


def test_only_the_section_between_the_comments_is_replaced(tmp_path):
    assert replaced_section("a <!-- sweep -->b<!-- /sweep --> c", "new", tmp_path).split() == [
        *("a", "<!--", "sweep", "-->", "new", "<!--", "/sweep", "-->", "c")
    ]
