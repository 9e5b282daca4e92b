"""Profiles of the running job -> cost samples -> placer with a preset as prior -> version and plan, as `learn` does."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import fsspec

from dreamshard import traces
from dreamshard.constraints import ANY_SHARDING
from dreamshard.costs import TRACED, CostSample
from dreamshard.files import reading
from dreamshard.hardware.accelerator import PRESETS, AcceleratorSpec, hardware as hardware_of, preset_of
from dreamshard.plan import read_plan
from dreamshard.recipes import Recipe
from dreamshard.tasks import mismatch
from dreamshard.testbeds.base import TABLES_SHARE
from dreamshard.traces import Learned, trace_files, traced_sample
from dreamshard.workloads import dataset_version
from dreamshard.workloads.sources import local_folder
from flows.forms.form import configure, deployed
from flows.forms.options import LearnOptions, PlaceOptions, RetrainingOptions
from flows.place import place_tables
from flows.placing.request import read_any_plan
from flows.runtime.run_locks import registry_lock
from flows.runtime.sources import read_model
from flows.runtime.tasks import announce, content_key, report_progress, retried_task
from flows.stages import running
from storage.mlflow_store import registry, runs
from storage.mlflow_store.runs import Run
from storage.run_records.trainings import TestbedReference, Training, slug
from storage.store import Store, open_store

_ROOM = 2**50  # bytes of a device of a job that ran, so it had enough
_PROVISIONAL = "learned from profiles of the job, not compared by measurement"


@deployed
def learn(options: LearnOptions) -> dict[str, Any]:
    """Profiles of a job, oldest first -> version of a placer that knows its costs, and a plan for the job."""
    store, samples = open_store(), list[CostSample]()
    with ExitStack() as copies:
        for address in options.profiles:
            folder = copies.enter_context(local_folder(address))
            asked, source = _request(options, address, folder), options.tables or f"{address.rstrip('/')}/tables.json"
            samples.append(read_profile(store, address, folder, asked, source))
        newest = samples[-1]
        spec = hardware_of(asked.hardware) if asked.hardware else preset_of(newest.hardware)
        if spec is None:
            raise ValueError(
                f"there is no preset of {newest.hardware}; give --hardware, the most similar of {', '.join(PRESETS)}"
            )
        memory_gb = asked.memory_gb or TABLES_SHARE * spec.memory_bytes / 2**30
        asked = asked.model_copy(update={"hardware": None, "memory_gb": memory_gb})
        with running(store, "learn", config := _recipe(asked, source, newest), 0) as run:
            learned, error = fit_profiles(samples, spec)
            version = register_learned(store, run, config, samples, learned, error)
            outcome = place_tables(store, asked.model_copy(update={"placer": version}))
    planned = read_plan(outcome["plan"]).placement(newest.task.tables)
    best = fastest(samples)
    saving, name = learned.saving(newest.task, best.placement, planned), best.task.name
    of = "current plan" if best is newest else f"plan of {name}, the fastest so far ({best.overall_ms:.3f} ms measured)"
    advice = (
        "take the new plan"
        if saving.low > 0
        else "profile some steps of the new plan, and learn from them too, before it is taken for good"
        if saving.mean > 0
        else "keep the current plan"
        if best is newest
        else f"go back to the plan of {name}"
    )
    announce(f"The new plan saves {saving} that refits predict for the {of}: {advice}.")
    return outcome | {
        "version": version,
        "profiles": len(samples),
        "ranks_traced": int(newest.costs.seen.sum()),
        "traced_ms": newest.overall_ms,
        "prediction_error": error,
        "fastest": name,
        "saving": [saving.mean, saving.low, saving.high],
        "advice": advice,
    }


def fastest(samples: Sequence[CostSample]) -> CostSample:
    """The profile of the fastest plan, of those of the newest's tables, batch and ranks if all were traced; or the newest."""
    newest = samples[-1]
    alike = [
        sample
        for sample in samples
        if (sample.task.tables.names, sample.batch_size) == (newest.task.tables.names, newest.batch_size)
        and not mismatch(newest.task, sample.placement)
        and sample.costs.seen.all()
    ]
    return min(alike, key=lambda sample: sample.overall_ms) if newest.costs.seen.all() else newest


def profiles_in(address: str) -> dict[str, str]:
    """The profiles in a folder or bucket, the oldest first, and when the newest trace of each was written."""
    files, path = fsspec.core.url_to_fs(address)
    files.invalidate_cache()  # of listings
    traces = sorted((files.modified(trace), trace) for trace in files.glob(f"{path}/*/rank*.json*"))
    named = files.unstrip_protocol if "://" in address else str
    return {named(trace.rpartition("/")[0]): str(when) for when, trace in traces}


def _request(options: LearnOptions, address: str, folder: Path) -> PlaceOptions:
    """A profile's plan, tables and setting as a request to place; options that are given come first."""
    if not folder.is_dir():
        raise ValueError(f"there is no profile {address}; give a folder of traces, as profiled_steps writes it")
    given = options.model_dump(exclude={"profiles", "plan"}, exclude_none=True)
    job = _job(folder)
    fields = {"model": slug(job["model"]), "tables": str(folder / "tables.json"), "batch_size": job["batch_size"]}
    asked = PlaceOptions(**fields | given, current=options.plan or str(folder / "plan.json"))
    if asked.batch_size is None:
        raise ValueError(
            f"{address} does not say how many samples a step has; give --batch-size, of all ranks together"
        )
    return asked


@retried_task("read profile")
def read_profile(store: Store, address: str, folder: Path, asked: PlaceOptions, source: str) -> CostSample:
    """Traces, plan and tables -> cost sample, also in the lake; `folder` holds what is at the address.

    Args:
        source: of the tables, as the lake names it.

    Raises:
        ValueError: a trace is damaged, or not of this plan.
    """
    model = read_model(store, asked.tables, announce)
    plan = read_any_plan(Path(str(asked.current)), model.tables, asked.devices_per_host, asked.devices)
    task = model.task(
        plan.num_devices,
        _ROOM,
        precision=asked.precision,
        optimizer=asked.optimizer,
        name=PurePath(address).name,
        devices_per_host=plan.devices_per_host,
        batch_size=asked.batch_size,
        constraints=replace(ANY_SHARDING, caching=True),
    )
    job, paths = _job(folder), trace_files(folder)
    sample = traced_sample(paths, task, plan.placement(task.tables), job["versions"])
    dataset = store.lake.write_dataset(task.tables, source, None)
    with store.lake.collecting(content_key(TRACED, dataset, sample.hardware, address), 1, dataset) as keep:
        keep(sample)
    report_progress("profile", len(paths), task.num_devices, f"ranks traced, {sample.overall_ms:.3f} ms a step")
    return sample


@retried_task("fit profiles")
def fit_profiles(samples: list[CostSample], spec: AcceleratorSpec) -> tuple[Learned, float]:
    """Samples and preset -> placer, and its error on devices that were not fitted to."""
    return traces.learn(samples, spec), traces.heldout_error(samples, spec)


@retried_task("register version")
def register_learned(
    store: Store, run: Run, config: Recipe, samples: list[CostSample], learned: Learned, error: float
) -> str:
    """Placer -> version, champion of its topology unless one that was compared by measurement is; returns its URI."""
    newest = samples[-1]
    dataset = dataset_version(newest.task.tables)
    reference = TestbedReference(
        name=TRACED,
        kind=TRACED,
        identity=newest.hardware,
        num_devices=newest.task.num_devices,
        batch_size=newest.batch_size,
        dataset=dataset,
        seed=0,
    )
    made_of = Training(recipe=config, dataset=dataset, testbed=reference, start="from profiles of the job")
    tags = {"training": content_key(TRACED, dataset, run.id), "iteration": len(samples), "dataset": dataset}
    with registry_lock(store):
        uri = runs.register_placer(
            store,
            learned.placer,
            run,
            made_of,
            metrics={"prediction_error_pct": 100 * error},
            tags=tags,
            pool=newest.task.tables,
        )
        champion = registry.champion(store, made_of.registered_model)
        alias: registry.Alias = "champion" if champion is None or champion.provisional else "challenger"
        registry.set_alias(store, uri, alias, _PROVISIONAL, provisional=_PROVISIONAL)
        registry.write_versions(store)
    return uri


def _job(folder: Path) -> dict[str, Any]:
    """What `profiled_steps` wrote of the job, if it wrote the profile."""
    about, job = folder / "job.json", dict[str, Any](model="", batch_size=None, versions={})
    if about.is_file():
        with reading(about, "describes no job", "let profiled_steps write it"):
            job |= json.loads(about.read_bytes())
    return job


def _recipe(asked: PlaceOptions, source: str, sample: CostSample) -> Recipe:
    """How a version records what it was learned from."""
    task = sample.task
    recipe = configure(
        RetrainingOptions(
            model=asked.model,
            source=source,
            testbed=TRACED,
            mode="fixed",
            devices=task.num_devices,
            devices_per_host=task.devices_per_host,
            memory_gb=asked.memory_gb,
            batch_size=sample.batch_size,
        )
    )
    tasks = replace(recipe.tasks, precision=task.precision, optimizer=task.optimizer)
    return replace(recipe, tasks=tasks, derived=())
