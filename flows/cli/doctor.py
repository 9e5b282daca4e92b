"""`dreamshard doctor`: checks of this machine, missing parts, and what to do about them."""

import importlib
import importlib.metadata
import os
import shutil
import time
from contextlib import closing
from dataclasses import replace

import torch

from dreamshard.costs import CostSample
from dreamshard.files import without_passwords
from dreamshard.tables import ModelTable, Placement, concatenate
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds import MeasurementError, TestbedSetup, open_testbed
from dreamshard.testbeds.rounds import Steadiness
from dreamshard.workloads import Lookups, statistics
from flows.cli import terminal
from flows.cli.command import Json, command
from flows.reports.evaluation_report import steadiness_words
from flows.runtime import run_locks
from storage.store import open_store

Check = tuple[str, str, str, str]
"""A check, its state (ok, low, optional, missing), the finding, and what to do."""

_MACHINE_S, _ROUNDS = 10.0, 3  # seconds of measuring, rounds of a repeat
_ROWS, _BATCH = 100_000, 2048


@command
def doctor(*, as_json: Json = False) -> None:
    """Check devices, the fbgemm build, and whether home and store can be written, and list what is missing.

    Also measures one placement for ten seconds to see how steady the machine is. For conflicts between packages, run
    `pip check`.
    """
    checks = [
        _package("torchrec", "optional", "pip install --no-deps torchrec==1.8.0, for --format torchrec"),
        _package("fbgemm_gpu", "missing", "make run; fbgemm 1.8 needs torch 2.13"),
        _devices(),
        _machine(),
        _store(),
    ]
    names = ("what", "state", "finding", "to do")
    rows = [dict(zip(names, map(without_passwords, check), strict=True)) for check in checks]
    (terminal.print_json if as_json else terminal.print_table)(rows)
    if any(row["state"] == "missing" for row in rows):
        raise SystemExit(1)


def _package(module: str, state: str, advice: str) -> Check:
    """Whether a package loads."""
    try:
        importlib.import_module(module)  # only to see whether it loads; others use it
    except (ImportError, OSError, RuntimeError) as error:
        return module, state, str(error).splitlines()[0], advice
    (package, *_) = importlib.metadata.packages_distributions()[module]
    return module, "ok", importlib.metadata.version(package), ""


def _devices() -> Check:
    if torch.cuda.is_available():
        return "devices", "ok", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}", ""
    has_driver = shutil.which("nvidia-smi") is not None
    advice = "an NVIDIA driver is installed, but torch sees no GPU: install the cuda extra" if has_driver else ""
    text = f"no GPU; {os.cpu_count()} CPU cores: testbeds cluster (CPU), emulated and simulated"
    return "devices", "ok", text, advice


def _machine() -> Check:
    """Repeat one small placement; rounds at different times belong together, as in an evaluation."""
    tables = [statistics(ModelTable(name, _ROWS, 64), _lookups(name)) for name in ("first", "second")]
    task = PlacementTask(concatenate(tables), num_devices=2, memory_bytes=2**30)
    placement, samples = Placement.whole([0, 1], 2), list[CostSample]()
    setup = TestbedSetup(num_devices=2, batch_size=_BATCH, lookups=_lookups)
    try:
        with run_locks.measuring(), closing(open_testbed("auto", setup)) as testbed:
            testbed.measure(task, placement)  # ranks start
            began = time.monotonic()
            while time.monotonic() < began + _MACHINE_S or len(samples) < 2 * _ROUNDS:
                samples.append(testbed.measure(task, placement))
    except (ValueError, MeasurementError, ConnectionError) as error:
        return "machine", "missing", f"nothing can be measured: {error}", "see docs/gpus.md"
    repeats = len(samples) // _ROUNDS
    rounds = (replace(sample, repeat=i % repeats, is_reference=True) for i, sample in enumerate(samples))
    steadiness = Steadiness.of(rounds)
    noise = steadiness.noise()
    advice = f"ignore differences in measured ms below {noise:.0%} while others use it" if noise else ""
    text = f"{steadiness_words(steadiness, None)}, {steadiness.level_ms:.3g} ms"
    return "machine", "low" if advice else "ok", text, advice


def _lookups(_table: str) -> Lookups:
    """Of each table: ten random rows per sample."""
    drawn = torch.randint(_ROWS, (10 * _BATCH,), generator=torch.Generator().manual_seed(0))
    return Lookups(drawn.int(), torch.arange(0, 10 * _BATCH + 1, 10))


def _store() -> Check:
    try:
        settings = open_store()
    except ValueError as error:
        return "store", "missing", str(error), "correct DREAMSHARD_HOME, DREAMSHARD_STORE or its credentials"
    text = f"{settings.store_root} can be written; MLflow's files at {settings.artifact_root}"
    advice = "to share the home: DREAMSHARD_STORE, e.g. s3://bucket/prefix"
    return "store", "ok", text, advice if settings.store_root == settings.home else ""
