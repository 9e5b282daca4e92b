"""The check of a GPU machine, on the CPU with tiny tables; on a GPU the same path measures more."""

import csv
import subprocess
from pathlib import Path

import pytest
import torch

from tests.benchmarks import bench_presets
from tests.gpu import check

SCRIPT = Path(check.__file__).with_suffix(".sh")


def lines_of(folder: Path, *options: str) -> list[dict[str, str]]:
    assert check.main(["--device", "cpu", "--preset", "h100", "--out", str(folder), *options]) == 0
    return list(csv.DictReader((folder / "tbe_cpu.csv").read_text().splitlines()))


def test_every_figure_is_a_line_that_the_presets_benchmark_reads(tmp_path, monkeypatch, capsys):
    lines = lines_of(tmp_path, "--minutes", "5")
    header = (bench_presets.TIMES / "tbe.csv").read_text().partition("\n")[0]
    assert list(lines[0]) == header.split(",")
    assert {line["op"] for line in lines} == {"fwd", "bwd", "fwd+bwd"}
    assert {line["dtype_weights"] for line in lines} == {"fp32", "fp16"}
    assert sum("device 0 of 4" in line["notes"] for line in lines) > 0
    assert sum("device 0 of 1" in line["notes"] for line in lines) == 2 * check.SIZES["cpu"].placements
    assert all(float(line["time_us"]) > 0 for line in lines)
    monkeypatch.setattr(bench_presets, "TIMES", tmp_path)
    monkeypatch.setitem(bench_presets.TAKEN_FOR, "cpu", "h100")
    ratios = bench_presets.kernel_ratios()
    assert sum(map(len, ratios.values())) == len(lines)
    said = capsys.readouterr().out
    assert "adam on cpu" in said, "left out"
    assert "kernels, fwd: h100 over" in said


def test_no_stage_begins_after_its_deadline(tmp_path, capsys):
    assert lines_of(tmp_path, "--minutes", "0") == []
    assert capsys.readouterr().out.count("stopped") == len(check.STAGES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_script_says_what_is_missing(tmp_path):
    done = subprocess.run([SCRIPT, tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert "no NVIDIA GPU" in done.stderr or "are missing" in done.stderr
    assert not list(tmp_path.iterdir())
