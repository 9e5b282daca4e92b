"""One fixed model: what `dreamshard run` claims of MLPerf's and Criteo's lists on eight simulated A100s.

Costs are those of the simulator with 1 % noise, so the figures are as good as its preset; gains are means of the seeds, with
the widest ends of their 95 % intervals over repeats.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from dreamshard.tables import parent_name
from tests.benchmarks.measuring import Row, row, split_note

SOURCES = ("mlperf-dlrm-dcnv2", "criteo-kaggle")
SEEDS = (0, 1, 2)
_COMMAND = "from flows.cli.app import main; main()"
_OPTIONS = ("--devices", "8", "--testbed", "simulated:a100", "--json")


def rows(quick: bool = False) -> Iterator[Row]:
    """Gains over the best rule of thumb and TorchRec's planner, and prediction errors, of three seeds."""
    for source in SOURCES:
        reports = [report(source, seed) for seed in SEEDS[: 1 if quick else None]]
        name = f"{source} x8, all 26 tables"
        own_name = f"{name}{split_note(is_split(reports, on_model=True))}"
        yield from gains(f"{own_name}: saved over the best rule of thumb", reports, None)
        if all("torchrec_planner" in each["gains"] for each in reports):
            yield from gains(f"{own_name}: saved over TorchRec's planner", reports, "torchrec_planner")
        placers = [{line["placer"]: line for line in each["placers"]}["dreamshard"] for each in reports]
        errors = [placer["predicted_mape"] for placer in placers]
        yield row(f"{name}: prediction error on held-out placements", 100 * fmean(errors), "%")
        own = [placer["predicted_ms"] / placer["overall_ms"] for placer in placers]
        yield row(f"{own_name}: own placement, predicted over measured", fmean(own), "")


def gains(name: str, reports: list[dict[str, Any]], over: str | None) -> Iterator[Row]:
    """The gain over a placer, or over each report's best rule of thumb, on the model and on its drifted variants."""
    names = [over or each["reference"] for each in reports]
    model = [each["gains"]["dreamshard"][other] for each, other in zip(reports, names, strict=True)]
    low, high = (f(gain[end] or gain["mean_gain"] for gain in model) for f, end in ((min, "low"), (max, "high")))
    yield row(f"{name} ({100 * low:+.1f} to {100 * high:+.1f})", 100 * fmean(gain["mean_gain"] for gain in model), "%")
    drifted = [each["variant_gains"]["dreamshard"][other] for each, other in zip(reports, names, strict=True)]
    low, high = (f(gain[end] or gain["mean_gain"] for gain in drifted) for f, end in ((min, "low"), (max, "high")))
    note = split_note(is_split(reports, on_model=False))
    label = f"- on {drifted[0]['num_tasks']} drifted variants{note} ({100 * low:+.1f} to {100 * high:+.1f})"
    yield row(label, 100 * fmean(gain["mean_gain"] for gain in drifted), "%")


def is_split(reports: list[dict[str, Any]], *, on_model: bool) -> bool:
    """Whether dreamshard split tables by columns in any placement of the model, or of a drifted variant."""
    return any(
        parent_name(table) != table
        for each in reports
        for line in each["rows"]
        if line["placer"] == "dreamshard" and (line["task"] == each["model"]) == on_model
        for table in line["tables"]
    )


def report(source: str, seed: int) -> dict[str, Any]:
    """The evaluation of one run in a new home."""
    with TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, "-c", _COMMAND, "run", "--source", source, "--seed", str(seed), *_OPTIONS],
            env={**os.environ, "DREAMSHARD_HOME": home},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found: dict[str, Any] = json.loads(Path(json.loads(done.stdout)["where"]["evaluation"]).read_text())
    return found
