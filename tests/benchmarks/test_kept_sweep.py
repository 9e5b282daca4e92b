"""The sweep's figures in RESULTS.md are those of the kept cells."""

import shutil

import pytest

from flows.cli.sweep import replaced_section
from tests.benchmarks.kept_sweep import FOLDER, README, RESULTS, excerpt, kept_results, section


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
