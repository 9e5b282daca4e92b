"""Trainings and registered versions without a registry."""

from dataclasses import replace
from typing import Any

from dreamshard.recipes import RECIPES
from storage.mlflow_store.registry import MADE_OF, Version
from storage.run_records.trainings import TestbedReference, Training, Warm


def training_of(
    kind: str = "simulated",
    hardware: str = "simulated rtx2080ti",
    *,
    recipe: str = "smoke",
    source: str = "tables.csv",
    dataset: str = "d",
    tasks: str = "t",
    testbed: str | None = None,
    warm: Warm | None = None,
    **sizes: Any,
) -> Training:
    """A training on some hardware, with these sizes of its tasks (`TasksConfig`)."""
    base, modelled = RECIPES["smoke"], f"{kind}:{hardware.split()[-1]}" if kind == "simulated" else kind
    sampled = replace(base.tasks, **{"mode": "pool", **sizes})
    used = replace(base, name=recipe, workload=replace(base.workload, source=source), tasks=sampled)
    where = {"name": testbed or modelled, "kind": kind, "identity": hardware, "links": hardware, "dataset": dataset}
    how = {"num_devices": sampled.num_devices, "batch_size": 512, "seed": 0}
    return Training(recipe=used, dataset=dataset, testbed=TestbedReference(**where, **how), tasks=tasks, warm=warm)


def version_of(uri: str, made_of: Training | None = None, aliases: tuple[str, ...] = (), **tags: str) -> Version:
    """A registered version."""
    known = {"training": f"training of {uri}", "iteration": "1", MADE_OF: (made_of or training_of()).to_json()}
    return Version(uri=uri, model_id=uri, tags={**known, **tags}, aliases=aliases)
