"""Collects costs of shards on one GPU and learns from them: `profile` and `train` for a recipe with a collection."""

import logging
import math
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from dreamshard.exchange_sample import ExchangeSample
from dreamshard.files import atomic
from dreamshard.recipes import Recipe
from dreamshard.shard_profiling.bundled_placers import is_of, save_bundled
from dreamshard.shard_profiling.collection import CollectionResult, collect, default_device
from dreamshard.shard_profiling.dataset import read_shards, samples_of
from dreamshard.shard_profiling.design import CollectionConfig, small_collection
from dreamshard.shard_profiling.fit import ShardTraining, learn_from_shards
from dreamshard.shard_profiling.report import fusion_rows
from dreamshard.testbeds.accelerators.refit import refit
from dreamshard.testbeds.accelerators.specs import accelerator
from dreamshard.testbeds.machine import device_model, library_versions
from dreamshard.training import make_placer
from flows.reports import mlflow_tracking
from flows.runtime import launched_ranks
from flows.runtime.prefect_tasks import measuring_task
from flows.runtime.progress import report_progress
from flows.runtime.retries import progressing
from flows.runtime.run_locks import host_lock
from storage.lake.exchange_samples import read_exchanges
from storage.store import Store

logger = logging.getLogger(__name__)

Device = Literal["auto", "cpu", "cuda"]

_ORDER = "order.txt"
SHARD_S = 900.0
"""The longest time that one shard may take: lookups of sixty tables are drawn, and it is measured."""


def profile_shards(store: Store, config: Recipe, seed: int, seconds: float | None, device: Device) -> dict[str, Any]:
    """Continue the collection for as long as the time allows, then summarise it."""
    collection = _collection(config)
    with mlflow_tracking.chain(store, "profile", config, seed) as chain, chain.stage("profile") as run:
        collected = collect_shards(store, collection, seconds, device)
        figures = {"shards": float(collected.known), "infeasible_shards": float(collected.infeasible)}
        mlflow_tracking.log_iteration(store, run, 0, figures)
    shards = read_shards(Path(collected.folder))
    samples = samples_of(shards)
    outcome: dict[str, Any] = {
        "testbed": f"{collected.hardware}, shard by shard",
        "shards": f"{collected.known} of {collection.num_shards}",
        "measured_now": collected.measured,
        "did_not_fit": collected.infeasible,
        "folder": collected.folder,
    }
    if is_of(collection.accelerator, collected.hardware) and samples:
        outcome["refit"] = str(refit(accelerator(collection.accelerator), samples))
    return outcome | {"table": fusion_rows(shards)}


def train_on_shards(store: Store, config: Recipe, seed: int) -> dict[str, Any]:
    """Collected shards -> cost network and policy -> a placer in the home, for `--placer ACCELERATOR`.

    Raises:
        ValueError: nothing has been collected on that accelerator.
    """
    name = _collection(config).accelerator
    folders = [
        path for path in _root(store).glob("*/*") if is_of(name, path.parent.name) and any(path.glob("*.parquet"))
    ]
    if not folders:
        raise ValueError(
            f"no costs of shards have been measured on {name} in this home, so there is nothing to learn from; run "
            f"`dreamshard profile --recipe {config.name}` on a machine with one"
        )
    newest = max(folders, key=lambda path: (_number(path), path.stat().st_mtime))
    with mlflow_tracking.chain(store, "train", config, seed) as chain, chain.stage("train") as run:
        exchanges = _exchanges_on(store, name)
        learnt = learn_from_shards(read_shards(newest), accelerator(name), ShardTraining(seed=seed), exchanges)
        mlflow_tracking.log_iteration(store, run, 0, {"cost_heldout_mape": learnt.errors[-1].mape})
    placer = make_placer(learnt.state)
    target = save_bundled(store.settings.home / "placers", name, placer, learnt.measurements)
    table = [error.row() for error in learnt.errors]
    return {"training": str(newest), "placer": str(target), "table": table}


@measuring_task("collect shards")
def collect_shards(store: Store, config: CollectionConfig, seconds: float | None, device: Device) -> CollectionResult:
    """Design -> costs of shards as Parquet parts in the home, each written at once.

    Raises:
        MeasurementError: no shard was measured within `SHARD_S`, twice; earlier measurements are kept.
        ValueError: there is no such device, or fbgemm is not installed.
    """
    ranks = launched_ranks.for_testbed("cluster")
    layout = None if ranks is None else ranks.layout
    found = default_device() if layout is None else layout.device_type()
    device_type = found if device == "auto" else device
    design = config if device_type == "cuda" else small_collection(config)
    model = device_model(device_type)
    if not is_of(config.accelerator, model):
        logger.warning("costs are measured on %s and are not those of %s", model, config.accelerator)
    folder = _root(store) / quote(model, safe=" ()") / design.design
    with host_lock(), progressing(SHARD_S, f"no shard from {model}") as alive:
        _make_newest(_root(store), folder)

        def on_progress(done: int, total: int, note: str) -> None:
            alive()
            report_progress("measure", done, total, note)

        return collect(
            folder,
            design,
            seconds=math.inf if seconds is None else seconds,
            device_type=device_type,
            workers=4 if device_type == "cuda" else 1,
            progress=on_progress,
            ranks=ranks,
        )


def _exchanges_on(store: Store, accelerator: str) -> list[ExchangeSample]:
    """All-to-alls that ranks measured on machines with the accelerator; those by link figures would add nothing."""
    known = read_exchanges(store.lake.root, None, library_versions())
    return [sample for sample in known if is_of(accelerator, sample.hardware) and sample.clock != "model"]


def _collection(config: Recipe) -> CollectionConfig:
    if config.collection is None:
        raise ValueError(f"recipe {config.name!r} collects no costs of shards; use h200_costs")
    return config.collection


def _number(folder: Path) -> int:
    """Its place in the order in which collections were continued, since clocks go back; 0 for those of earlier releases."""
    file = folder / _ORDER
    return int(file.read_text()) if file.is_file() else 0


def _make_newest(root: Path, folder: Path) -> None:
    others = max((_number(each) for each in root.glob("*/*") if each != folder), default=0)
    if _number(folder) <= others:
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write(folder / _ORDER, f"{others + 1}\n".encode())


def _root(store: Store) -> Path:
    return store.settings.home / "shards"
