"""What the last training of a setting was trained on."""

from dreamshard.recipes import Recipe
from dreamshard.testbeds import is_testbed
from dreamshard.workloads import known_as
from storage.mlflow_store.version_names import number_of
from storage.run_records import lineage
from storage.run_records.trainings import tables_setting
from storage.store import Store


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
