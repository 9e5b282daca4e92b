"""The check of a GPU machine, on the CPU with tiny tables."""

import csv
import subprocess
from pathlib import Path

import pytest
import torch

from dreamshard.hardware.accelerator import PRESETS
from tests.benchmarks.bench_presets import TIMES, kind_of, predicted_s
from tests.gpu import check


def test_figures_are_lines_that_the_presets_benchmark_reads(tmp_path, capsys):
    options = ["--device", "cpu", "--preset", "h100", "--out", str(tmp_path), "--minutes"]
    assert check.main([*options, "0"]) == 0
    said, file = capsys.readouterr().out, tmp_path / "tbe_cpu.csv"
    assert all(f"{stage}: out of time" in said for stage in check.STAGES)
    assert file.read_text().splitlines() == TIMES.read_text().splitlines()[:1]
    assert check.main([*options, "5"]) == 0
    lines = list(csv.DictReader(file.read_text().splitlines()))
    assert {(line["op"], line["dtype_weights"]) for line in lines} >= {("bwd", "fp16"), ("fwd+bwd", "fp32")}
    assert {line["notes"].partition(";")[0] for line in lines} == {*check.STAGES}
    assert all(float(line["time_us"]) > 0 for line in lines)
    assert all(kind_of(line) and predicted_s(line, PRESETS["h100"]) > 0 for line in lines)
    said = capsys.readouterr().out
    assert "left out: fbgemm trains no fp32 tables with adam" in said
    assert "emulated, " in said
    assert "bwd: h100 over" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_script_says_what_is_missing(tmp_path):
    script = Path(check.__file__).with_suffix(".sh")
    done = subprocess.run([script, tmp_path], capture_output=True, text=True)
    assert (done.returncode, list(tmp_path.iterdir())) == (1, [])
    assert "no NVIDIA GPU" in done.stderr or "are missing" in done.stderr
