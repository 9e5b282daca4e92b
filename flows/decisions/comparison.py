"""What a comparison of versions runs on: the sizes, hardware and tables of the versions, unless others are given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dreamshard.costs import SIMULATED
from dreamshard.files.text import gib
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.recipes import RECIPES
from flows.decisions.heldout import split_by_training
from flows.decisions.warm_start import learns_fixed_model
from flows.forms.options import CompareOptions
from storage.mlflow_store import registry, runs
from storage.mlflow_store.topology import Topology
from storage.mlflow_store.version_names import in_words, number_of
from storage.run_records import lineage
from storage.run_records.lineage import Origin
from storage.store import Store

Value = TypeVar("Value")

_FEWEST_TABLES = 2
"""Of a task that has a choice of devices."""


@dataclass(frozen=True, kw_only=True)
class _Compared:
    version: str
    run: str
    origin: Origin
    registered_ms: int


def with_sizes_of_versions(
    store: Store, options: CompareOptions, versions: Sequence[str]
) -> tuple[CompareOptions, str]:
    """The options, with what they leave open taken from the versions, and a sentence that says what was taken.

    Where versions differ, the first decides on testbed, devices and memory, the newest on the tables; one that learnt a
    fixed model makes all be compared on one model, since no table is held out for it.

    Args:
        versions: numbers of the versions, in the order in which they were named.

    Raises:
        ValueError: the versions cannot be compared like this, which is said before anything starts.
    """
    known = {version: registry.find(store.settings, version) for version in versions}
    compared = [
        _Compared(
            version=version, run=str(model.run_id), origin=origin, registered_ms=int(model.creation_timestamp or 0)
        )
        for version, model in known.items()
        if (origin := _origin(dict(model.tags))) is not None
    ]
    if not compared:
        return options, ""
    first = compared[0]
    notes: list[str] = []

    def of_first(what: str, values: Callable[[_Compared], Value], shown: Callable[[Value], str] = str) -> Value:
        others = {shown(values(each)): each.version for each in compared[1:] if values(each) != values(first)}
        if others:
            differing = " and ".join(f"{text} ({in_words(version)})" for text, version in others.items())
            notes.append(f"{what} is that of {in_words(first.version)}, {shown(values(first))}, not {differing}")
        return values(first)

    taken: dict[str, Any] = {}
    if options.recipe == "default" and first.origin.recipe in RECIPES:
        taken["recipe"] = first.origin.recipe
    if options.testbed is None:
        taken["testbed"] = of_first("the testbed", lambda each: _testbed(store, each))
    if options.devices is None:
        taken["devices"] = of_first("the number of devices", lambda each: int(each.origin.setting["devices"]))
    if options.devices_per_host is None and options.devices is None:
        hosts = of_first("the number per host", lambda each: each.origin.setting.get("devices per host"))
        taken["devices_per_host"] = None if hosts is None else int(hosts)
    if options.memory_gb is None and first.origin.memory_bytes is not None:
        room = of_first("the room per device", lambda each: each.origin.memory_bytes or 0, gib)
        taken["memory_gb"] = room / 2**30
    if options.dataset is None:
        newest = _newest(compared)
        taken["dataset"] = newest.origin.dataset
        if len({each.origin.dataset for each in compared}) > 1:
            notes.append(f"the tables are those of {in_words(newest.version)}, the newest")
    dataset = options.dataset or taken["dataset"]
    _require_dataset(store, dataset, compared, versions)
    if options.tables_per_task is not None and options.mode != "fixed":
        _require_heldout(store, dataset, versions, options.tables_per_task)
        taken["mode"] = options.mode or "pool"
    elif options.mode is None:
        taken |= _tasks(store, compared, dataset, versions, notes)
    filled = options.model_copy(update=taken)
    return filled, _sentence(filled, first, notes)


def _newest(compared: Sequence[_Compared]) -> _Compared:
    """The version that was registered last."""
    return max(compared, key=lambda each: (each.registered_ms, number_of(each.version)))


def other_hardware(store: Store, versions: Sequence[str], measured: Topology) -> str:
    """Says which versions' costs are of other hardware, or another number of devices, than is measured on; empty if none are.

    Args:
        measured: topology that is measured on.
    """
    known = {version: registry.version_tags(store.settings, version) for version in versions}
    origins = {version: origin for version in versions if (origin := _origin(known[version])) is not None}
    others = {version: origin.topology for version, origin in origins.items() if origin.topology != measured}
    if not others:
        return ""
    of = " and ".join(f"{in_words(version)} of {topology}" for version, topology in others.items())
    return f"measured on {measured}, but the predictions are those of {of}"


def _origin(tags: dict[str, str]) -> Origin | None:
    return Origin.from_json(tags[lineage.TAG]) if lineage.TAG in tags else None


def _testbed(store: Store, compared: _Compared) -> str:
    """The testbed's name on the command line.

    Raises:
        ValueError: it was one of the user's own, which the registry does not name.
    """
    kind, hardware = str(compared.origin.setting["testbed"]), str(compared.origin.setting["hardware"])
    if kind == "cluster":
        return kind
    preset = hardware.rpartition(" ")[2]
    if kind in (SIMULATED, "emulated") and preset in PRESETS:
        return f"{kind}:{preset}"
    parameters = runs.client(store.settings).get_run(compared.run).data.params
    name = str(parameters.get("testbed", ""))
    if ":" not in name:
        raise ValueError(
            f"{in_words(compared.version)} was trained on {hardware}, whose testbed has no name here, so it is unknown where "
            "to measure; give --testbed"
        )
    return name


def _require_dataset(store: Store, dataset: str, compared: Sequence[_Compared], versions: Sequence[str]) -> None:
    if dataset not in store.lake.dataset_versions():
        trained = next((each.version for each in compared if each.origin.dataset == dataset), None)
        of = f", of {in_words(trained)}," if trained else ""
        raise ValueError(
            f"dataset {dataset}{of} is not in the lake of this home, so {_listed(versions)} cannot be compared "
            "on it; run `dreamshard ingest` with its source, or give --dataset with one that is here"
        )


def _tasks(
    store: Store, compared: Sequence[_Compared], dataset: str, versions: Sequence[str], notes: list[str]
) -> dict[str, Any]:
    """Mode and tables per task.

    Raises:
        ValueError: too few tables are held out for all of the versions.
    """
    fixed = [each.version for each in compared if learns_fixed_model(each.origin)]
    if fixed:
        if len(fixed) < len(compared):
            notes.append(f"all are compared on one fixed model, since no table is held out for {in_words(fixed[0])}")
        return {"mode": "fixed"}
    _, unseen = split_by_training(store, dataset, versions)
    wanted = int(compared[0].origin.setting["tables per task"])
    if len(unseen) < _FEWEST_TABLES:
        raise ValueError(
            f"only {len(unseen)} tables of dataset {dataset} are new to all of {_listed(versions)}, so no "
            "task is held out for all of them; compare them on all tables as one model with --mode fixed, or fewer at once"
        )
    if len(unseen) < wanted:
        notes.append(f"tasks have {len(unseen)} tables rather than {wanted}, since only those are held out for all")
    return {"mode": "pool", "tables_per_task": min(wanted, len(unseen))}


def _require_heldout(store: Store, dataset: str, versions: Sequence[str], tables_per_task: int) -> None:
    _, unseen = split_by_training(store, dataset, versions)
    if len(unseen) < tables_per_task:
        raise ValueError(
            f"only {len(unseen)} tables of dataset {dataset} are new to all of {_listed(versions)}, but a "
            f"task takes {tables_per_task}, so no task is held out for all of them; give fewer --tables-per-task, or "
            "compare on all tables as one model with --mode fixed"
        )


def _sentence(options: CompareOptions, first: _Compared, notes: Sequence[str]) -> str:
    what = "one fixed model" if options.mode == "fixed" else f"tasks of {options.tables_per_task} tables"
    memory = "" if options.memory_gb is None else f" of {gib(round(options.memory_gb * 2**30))}"
    sentence = (
        f"compared as {in_words(first.version)} was trained: {what} of dataset {options.dataset}, {options.devices} "
        f"devices{memory}, testbed {options.testbed}"
    )
    return "; ".join([sentence, *notes])


def _listed(versions: Sequence[str]) -> str:
    return ", ".join(map(in_words, versions))
