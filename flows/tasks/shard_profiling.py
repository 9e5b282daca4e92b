"""Costs of shards on one GPU, collected and learnt from: what `profile` and `train` do for a recipe that collects."""

import logging
import math
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from dreamshard.recipes import Recipe
from dreamshard.shard_profiling.bundled_placers import is_of, save_bundled
from dreamshard.shard_profiling.collection import CollectionResult, collect, default_device
from dreamshard.shard_profiling.dataset import read_shards, samples_of
from dreamshard.shard_profiling.design import CollectionConfig, small_collection
from dreamshard.shard_profiling.fit import ShardTraining, learn_from_shards
from dreamshard.shard_profiling.report import fusion_rows
from dreamshard.testbeds.machine import device_model
from dreamshard.testbeds.refit import refit
from dreamshard.testbeds.specs import accelerator
from dreamshard.training import make_placer
from flows.reports import tracking
from flows.runtime import locks
from flows.runtime.progress import advance
from flows.runtime.retries import measurement_failed, progressing
from storage.settings import Settings

logger = logging.getLogger(__name__)

Device = Literal["auto", "cpu", "cuda"]

SHARD_S = 900.0
"""The most that one shard may take: to draw the lookups of sixty tables, and to measure it."""


def profile_shards(config: Recipe, seed: int, seconds: float | None, device: Device) -> dict[str, Any]:
    """Collect as much as the time allows, going on with what is there; then say what it shows."""
    collection = _asked(config)
    with tracking.chain("profile", config, seed) as chain, chain.stage("profile") as run:
        found = collect_shards(collection, seconds, device)
        tracking.log_iteration(run, 0, {"shards": float(found.known), "infeasible_shards": float(found.infeasible)})
    shards = read_shards(Path(found.folder))
    fitting = samples_of(shards)
    outcome: dict[str, Any] = {
        "testbed": f"{found.hardware}, shard by shard",
        "shards": f"{found.known} of {collection.num_shards}",
        "measured_now": found.measured,
        "did_not_fit": found.infeasible,
        "folder": found.folder,
    }
    if is_of(collection.accelerator, found.hardware) and fitting:
        outcome["refit"] = str(refit(accelerator(collection.accelerator), fitting))
    return outcome | {"table": fusion_rows(shards)}


def train_on_shards(config: Recipe, seed: int) -> dict[str, Any]:
    """Collected shards -> cost network and policy -> a placer in the home, for `--placer ACCELERATOR`.

    Raises:
        ValueError: nothing has been collected on that accelerator.
    """
    collection = _asked(config)
    name = collection.accelerator
    folders = [path for path in _root().glob("*/*") if is_of(name, _hardware(path)) and any(path.glob("*.parquet"))]
    if not folders:
        raise ValueError(
            f"no costs of shards have been measured on {name} in this home, so there is nothing to learn from; run "
            f"`dreamshard profile --recipe {config.name}` where there is one"
        )
    newest = max(folders, key=lambda path: path.stat().st_mtime)
    with tracking.chain("train", config, seed) as chain, chain.stage("train") as run:
        learnt = learn_from_shards(read_shards(newest), accelerator(name), ShardTraining(seed=seed))
        tracking.log_iteration(run, 0, {"cost_heldout_mape": learnt.errors[-1].mape})
    target = save_bundled(Settings.load().home / "placers", name, make_placer(learnt.state), learnt.measurements)
    table = [error.row() for error in learnt.errors]
    return {"training": str(newest), "placer": str(target), "table": table}


@task(
    name="collect shards",
    cache_policy=NO_CACHE,
    retries=1,
    retry_delay_seconds=exponential_backoff(2),
    retry_condition_fn=measurement_failed,
)
def collect_shards(config: CollectionConfig, seconds: float | None, device: Device) -> CollectionResult:
    """Design -> costs of shards as Parquet parts in the home, each as it comes.

    Raises:
        MeasurementError: no shard came within `SHARD_S`, twice; what was measured before is kept.
        ValueError: there is no such device, or fbgemm is not installed.
    """
    chosen = default_device() if device == "auto" else device
    asked = config if chosen == "cuda" else small_collection(config)
    model = device_model(chosen)
    if not is_of(config.accelerator, model):
        logger.warning("costs are measured on %s and say little of %s", model, config.accelerator)
    folder = _root() / quote(model, safe=" ()") / asked.design
    limit = math.inf if seconds is None else seconds
    with locks.of_host(), progressing(SHARD_S, f"no shard from {model}") as alive:

        def told(done: int, total: int, what: str) -> None:
            alive()
            advance("measure", done, total, what)

        return collect(
            folder,
            asked,
            seconds=limit,
            device_type=chosen,
            workers=4 if chosen == "cuda" else 1,
            progress=told,
        )


def _asked(config: Recipe) -> CollectionConfig:
    if config.collection is None:
        raise ValueError(f"recipe {config.name!r} collects no costs of shards; use h200_costs")
    return config.collection


def _root() -> Path:
    return Settings.load().home / "shards"


def _hardware(folder: Path) -> str:
    return folder.parent.name
