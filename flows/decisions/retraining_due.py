"""Which retrainings are the same, and what the last one was trained on: a watch requests none twice.

Two retrainings are the same if every field of `storage.schedule.Schedule` is: the source of tables however it is spelt, the
algorithm whether it is named or the recipe's. The version of the tables is compared separately.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dreamshard.names import number_of
from dreamshard.recipes import Recipe, recipe
from dreamshard.testbeds.naming import is_testbed
from dreamshard.workloads import known_as
from flows.decisions.warm_start import tables_setting
from flows.forms.options import RetrainingOptions
from storage.run_records import lineage
from storage.schedule import Schedule
from storage.store import Store

_COMPARED = tuple(field.name for field in fields(Schedule))


def last_trained(store: Store, config: Recipe, dataset: str) -> str | None:
    """The dataset that the newest version like `config` was trained on, or None before the first.

    It is `dataset` itself if the champion or a newer version was trained on it: warm-starting from the champion would
    only repeat that training. A try-out does not count: the retraining has yet to be decided on.
    """
    versions = [
        version for version in lineage.versions(store) if not version.is_tryout and _is_like(version.origin, config)
    ]
    champion = max((number_of(version.version) for version in versions if version.is_champion), default=0)
    if any(version.origin.dataset == dataset and number_of(version.version) >= champion for version in versions):
        return dataset
    return versions[0].origin.dataset if versions else None


def is_same_retraining(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the parameters are those of the same retraining; an empty field equals one that is left out."""
    return all(_compared(one, name) == _compared(other, name) for name in _COMPARED)


def _compared(parameters: Mapping[str, Any], name: str) -> Any:
    value = parameters.get(name) or None
    if name == "algorithm" and value is None:
        return recipe(parameters.get("recipe") or RetrainingOptions().recipe).training.algorithm
    if name == "mode" and value == "auto":  # what every recipe has
        return None
    return known_as(str(value)) if name in ("source", "batches") and value is not None else value


def _is_like(origin: lineage.Origin, config: Recipe) -> bool:
    setting, tasks = origin.setting, config.tasks
    return (
        (origin.recipe, known_as(origin.source)) == (config.name, config.workload.source)
        and setting.get("devices") == tasks.num_devices
        and setting.get("devices per host") == tasks.devices_per_host
        and tables_setting(tasks).items() <= setting.items()
        and (
            "memory_bytes" in config.derived or origin.memory_bytes in (None, tasks.memory_bytes - tasks.reserve_bytes)
        )
        and is_testbed(config.testbed, str(setting["testbed"]), str(setting["hardware"]))
    )
