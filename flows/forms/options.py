"""The options of every deployed flow: one class per flow, which its form, the API, its command and direct calls share.

A field is described once. Its title is also its option on the command line: `Memory GB` is `--memory-gb`. None means that the
field is empty: the team's setting holds (`setting.py`), else the recipe's value (`configuration.py`). Required fields come
first.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from dreamshard import names
from dreamshard.tables import Optimizer, Precision


@dataclass(frozen=True)
class SchemaEntry:
    """An entry of a field's JSON schema, computed only when a form is drawn: `--help` must not wait for torch."""

    name: str
    value: Callable[[], Any]

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Add the entry to what pydantic derives from the type."""
        return handler(core) | {self.name: self.value()}


ARGUMENT = object()
"""Marks a field that is an argument of its command, not an option."""


def _recipes() -> list[str]:
    from dreamshard.recipes import RECIPES

    return sorted(RECIPES)


def _field(title: str, description: str, **more: Any) -> Any:
    return Field(title=title, description=description, **more)


_SOURCES = (
    "Tables: a list (.csv, .parquet, .json), lookups (.pt, .tsv), a folder or bucket of these, a bundled list's name, or "
    "model.py:make_model. In Prefect's form by full path."
)
_TESTBEDS = (
    "Where costs come from: auto, cluster, emulated[:PRESET], simulated[:PRESET] or package.module:factory; PRESET may be a "
    "hardware file."
)
_PLACERS = (
    "champion, challenger, previous, a version (3, models:/NAME/3), prior, cost_greedy, "
    "dreamshard_policy, a rule of thumb, or a rival. Empty: the best for the hardware, or the champion."
)
_SHARDING = (
    "Ways to shard: columns, whole, auto (every way), or a list such as table_wise,row_wise. Costs of ways other than whole "
    "and columns are predicted, not measured."
)
_VERSIONS = (
    "Versions (3, champion, models:/NAME/3), cost_greedy, dreamshard_policy, rules of thumb, rivals; gains are over "
    "the first."
)
_VERSION = (
    "A version (3, models:/NAME/3; previous undoes) that becomes champion at once. Empty: the newest placer of the "
    "other fields, if its evaluation says so."
)

NumDevices = Annotated[int | None, _field("Devices", "Devices to place tables on.", ge=1, le=4096)]
DevicesPerHost = Annotated[
    int | None, _field("Devices per host", "Devices that share a host; by default the hardware's.", ge=1)
]
MemoryGb = Annotated[float | None, _field("Memory GB", "Room for tables on each device, GiB.", gt=0, le=1e5)]
ReserveGb = Annotated[float | None, _field("Reserve GB", "Of each device's room, kept for dense parameters.", ge=0)]
TablesPerTask = Annotated[int | None, _field("Tables per task", "Tables in each placement task of a pool.", ge=1)]
Mode = Literal["auto", "fixed", "pool"]
LearnedMode = Annotated[Mode | None, _field("Mode", "fixed: all tables are one model. pool: for models not seen yet.")]
ExchangeDevices = Annotated[
    str | None, _field("Exchange devices", "More numbers of devices whose all-to-alls are measured.")
]
Batches = Annotated[str | None, _field("Batches", "Of a TorchRec model: data.py:make_batches.")]
NumBatches = Annotated[int | None, _field("Num batches", "Sample batches to read, together one batch.", ge=1)]
BatchSize = Annotated[int | None, _field("Batch size", "Training samples per pass over all devices.", ge=1, le=2**24)]
Algorithm = Annotated[names.Algorithm | None, _field("Algorithm", "dreamshard; paper, autoshard: as published.")]
Current = Annotated[
    str | None, _field("Current", "The plan in use (full path): weighed or measured beside the new one.")
]
NoPromote = Annotated[bool, _field("No promote", "Register the version, but leave the champion as it is: a try-out.")]
Rivals = Annotated[bool, _field("Rivals", "Compare published rivals too; `rnn` learns first, by measuring.")]


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """The configuration that all other options override."""

    recipe: Annotated[
        str,
        _field("Recipe", "A complete configuration by name; fields that are filled in override it."),
        SchemaEntry("enum", _recipes),
    ] = "default"


@dataclass(frozen=True, kw_only=True)
class RunOptions(RecipeOptions):
    """What is drawn, and where costs come from."""

    seed: Annotated[int, _field("Seed", "Seed of every draw; the same gives the same bits.", ge=0, le=2**31 - 1)] = 0
    testbed: Annotated[str | None, _field("Testbed", _TESTBEDS)] = None


@dataclass(frozen=True, kw_only=True)
class RetrainingOptions(RunOptions):
    """A retraining: the team's setting, what `watch` starts and `retrain` takes."""

    source: Annotated[str | None, _field("Source", _SOURCES)] = None
    batches: Batches = None
    num_batches: NumBatches = None
    num_devices: NumDevices = None
    devices_per_host: DevicesPerHost = None
    memory_gb: MemoryGb = None
    reserve_gb: ReserveGb = None
    tables_per_task: TablesPerTask = None
    batch_size: BatchSize = None
    mode: LearnedMode = None
    exchange_devices: ExchangeDevices = None
    algorithm: Algorithm = None

    def given(self) -> dict[str, Any]:
        """The fields of a retraining that differ from their defaults, without those that a subclass adds."""
        known = dataclasses.fields(RetrainingOptions)
        return {each.name: getattr(self, each.name) for each in known if getattr(self, each.name) != each.default}


@dataclass(frozen=True, kw_only=True)
class RetrainOptions(RetrainingOptions):
    """The whole chain."""

    iterations: Annotated[int | None, _field("Iterations", "Rounds of measure, fit, improve.", ge=1, le=1000)] = None
    placements_per_iteration: Annotated[
        int | None, _field("Placements per iteration", "Placements measured in each round.", ge=1, le=10_000)
    ] = None
    full: Annotated[bool, _field("Full", "Train from nothing instead of continuing from the champion.")] = False
    new_reference: Annotated[
        bool, _field("New reference", "Draw other reference tasks, by whose costs versions are compared from now on.")
    ] = False
    current: Current = None
    no_promote: NoPromote = False


@dataclass(frozen=True, kw_only=True)
class WatchOptions(RetrainingOptions):
    """A look at a source of tables, and what counts as a change."""

    pooling_drift: Annotated[
        float, _field("Pooling drift", "Relative change of lookups per sample from which a table drifted.", ge=0, le=10)
    ] = 0.1
    reuse_drift: Annotated[
        float,
        _field("Reuse drift", "Share of distinct rows in another bin of reuse from which it drifted.", ge=0, le=1),
    ] = 0.1
    changed_share: Annotated[
        float, _field("Changed share", "Share of changed tables from which a retraining starts.", ge=0, le=1)
    ] = 0.0
    start: Annotated[bool, _field("Start", "Start a retraining if one is due; otherwise only show changes.")] = True


@dataclass(frozen=True, kw_only=True)
class IngestOptions(RecipeOptions):
    """Tables to bring into the lake."""

    source: Annotated[str, _field("Source", _SOURCES), ARGUMENT]
    batches: Batches = None
    num_batches: NumBatches = None
    name: Annotated[str | None, _field("Name", "Name of the data set for people; by default the source's.")] = None
    batch_size: BatchSize = None


@dataclass(frozen=True, kw_only=True)
class TaskOptions(RunOptions):
    """Tasks of tables that have been ingested."""

    dataset: Annotated[str | None, _field("Dataset", "Version of the tables; by default the newest.")] = None
    num_devices: NumDevices = None
    devices_per_host: DevicesPerHost = None
    memory_gb: MemoryGb = None
    reserve_gb: ReserveGb = None
    tables_per_task: TablesPerTask = None
    mode: LearnedMode = None
    exchange_devices: ExchangeDevices = None


@dataclass(frozen=True, kw_only=True)
class StageOptions(TaskOptions):
    """One stage of a training."""

    algorithm: Algorithm = None


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(StageOptions):
    """The newest placer against rules of thumb and the champion."""

    rivals: Rivals = False
    current: Current = None


@dataclass(frozen=True, kw_only=True)
class CompareOptions(TaskOptions):
    """Any versions, rules of thumb and published rivals against each other."""

    versions: Annotated[
        list[str],
        _field(
            "Versions",
            _VERSIONS,
            min_length=1,
            examples=[["champion", "challenger"], ["models:/paper-a100-8@champion", "3"]],
        ),
        ARGUMENT,
    ]
    rivals: Rivals = False


@dataclass(frozen=True, kw_only=True)
class PromoteOptions(StageOptions):
    """The newest placer by its evaluation, or any version by hand."""

    version: Annotated[str | None, _field("Version", _VERSION), ARGUMENT] = None
    reason: Annotated[str | None, _field("Reason", "Why the version becomes champion; recorded on it.")] = None
    no_promote: NoPromote = False


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Tables that a person names, and what their plan is for; devices and memory are by default as the version's."""

    tables: Annotated[
        str,
        _field("Tables", "A list (.csv, .parquet, .json), model.py:make_model, or a bundled list.", min_length=1),
        ARGUMENT,
    ]
    num_devices: NumDevices = None
    devices_per_host: DevicesPerHost = None
    memory_gb: MemoryGb = None
    hardware: Annotated[
        str | None, _field("Hardware", "What the plan is for: a preset, e.g. h100, or a file (.yaml, .json).")
    ] = None
    placer: Annotated[str | None, _field("Placer", _PLACERS)] = None
    constraints: Annotated[
        str | None,
        _field(
            "Constraints",
            "What the plan must respect, as YAML or the full path of a file of it (docs/constraints-and-moving.md).",
            examples=["pin: {user_id: 0}\napart: [[user_id, item_id]]"],
        ),
    ] = None
    sharding: Annotated[str | None, _field("Sharding", _SHARDING)] = None
    reserve_gb: ReserveGb = None
    cache: Annotated[bool, _field("Cache", "Tables may be in host memory with a cache where room is short.")] = False
    precision: Annotated[
        Precision | None, _field("Precision", "Type of the weights; by default the model's, or fp32.")
    ] = None
    optimizer: Annotated[
        Optimizer | None, _field("Optimizer", "Optimizer, whose state takes room; by default the model's, or sgd.")
    ] = None
    batch_size: Annotated[
        int | None, _field("Batch size", "Training samples per step of all devices; by default as measured.", ge=1)
    ] = None
    budget_ms: Annotated[
        float | None, _field("Budget ms", "Work of the search: as much as an idle core does in this time.", ge=0)
    ] = None


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(PlanOptions):
    """Tables to place by hand, and what their plan must respect."""

    current: Current = None
    steps_until_next: Annotated[
        float, _field("Steps until next", "Training steps over which a gain over the plan in use counts.", ge=1)
    ] = 100_000
    move_gb_per_s: Annotated[
        float, _field("Move GB per s", "How fast all devices together move tables, GB/s.", ge=1e-6)
    ] = 10


@dataclass(frozen=True, kw_only=True)
class _Explained:
    current: Annotated[str, _field("Plan", "PLAN.json of dreamshard, or TorchRec's own plan as JSON."), ARGUMENT]


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(PlanOptions, _Explained):
    """A plan to explain."""


@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """Files to remove."""

    older_than_days: Annotated[
        int, _field("Older than days", "Days since a file was last written after which it may go.", ge=1, le=36_500)
    ] = 90
    delete: Annotated[bool, _field("Delete", "Remove the files for good; otherwise only show them.")] = False
