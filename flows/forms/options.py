"""The options of every deployed flow: one class per flow, which its form, the API, its command and direct calls share.

A field is described once. Its title is also its option on the command line: `Memory GB` is `--memory-gb`. None means that the
field is empty: the team's setting holds (`setting.py`), else the recipe's value (`configuration.py`). Fields of a second base
class come first in the form.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from dreamshard import names


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

RecipeName = Annotated[
    str,
    _field("Recipe", "A complete configuration by name; every field that is filled in overrides it."),
    SchemaEntry("enum", _recipes),
]
Seed = Annotated[int, _field("Seed", "Seed of every draw; the same seed gives the same bits.", ge=0, le=2**31 - 1)]
TestbedName = Annotated[
    str | None,
    _field(
        "Testbed",
        "Where costs come from: auto, cluster, emulated[:PRESET], simulated[:PRESET] or package.module:factory; PRESET may "
        "be a hardware file.",
        examples=["auto", "cluster", "emulated:h200", "simulated:v100"],
    ),
]
Source = Annotated[str | None, _field("Source", _SOURCES)]
IngestedSource = Annotated[str, _field("Source", _SOURCES), ARGUMENT]
Batches = Annotated[
    str | None, _field("Batches", "Of a TorchRec model: data.py:make_batches, which returns sample batches.")
]
NumBatches = Annotated[
    int | None, _field("Num batches", "Sample batches to read, together one batch.", ge=1, le=1_000_000)
]
Dataset = Annotated[
    str | None, _field("Dataset", "Version of the tables, as `ingest` returned it; by default the newest.")
]
NumDevices = Annotated[int | None, _field("Devices", "Devices to place tables on.", ge=1, le=4096)]
DevicesPerHost = Annotated[
    int | None,
    _field("Devices per host", "Devices that share a host; by default as many as the hardware has.", ge=1, le=4096),
]
ExchangeDevices = Annotated[
    str | None,
    _field("Exchange devices", "Further numbers of devices whose all-to-alls are measured, such as 64,128."),
]
MemoryGb = Annotated[float | None, _field("Memory GB", "Room for tables on each device, GiB.", ge=0.001, le=100_000)]
ReserveGb = Annotated[
    float | None,
    _field("Reserve GB", "Of each device's room, kept free for dense parameters, GiB.", ge=0, le=100_000),
]
TablesPerTask = Annotated[
    int | None, _field("Tables per task", "Tables in each placement task of a pool.", ge=1, le=100_000)
]
LearnedMode = Annotated[
    Literal["auto", "fixed", "pool"] | None,
    _field("Mode", "fixed: all tables are one model. pool: for models not seen yet. auto: by the number of tables."),
]
BatchSize = Annotated[int | None, _field("Batch size", "Training samples per pass over all devices.", ge=1, le=2**24)]
Algorithm = Annotated[
    names.Algorithm | None,
    _field(
        "Algorithm",
        "dreamshard, or as published: paper (DreamShard), autoshard; each has versions and champions of its own.",
    ),
]
CurrentPlan = Annotated[
    str | None, _field("Current", "PLAN.json in use for this model (full path): measured beside the new placement.")
]
Iterations = Annotated[int | None, _field("Iterations", "Rounds of measure, fit, improve.", ge=1, le=1000)]
PlacementsPerIteration = Annotated[
    int | None, _field("Placements per iteration", "Placements measured in each round.", ge=1, le=10_000)
]
Full = Annotated[bool, _field("Full", "Train from nothing instead of continuing from the champion.")]
NoPromote = Annotated[bool, _field("No promote", "Register the version, but leave the champion as it is: a try-out.")]
NewReference = Annotated[
    bool,
    _field("New reference", "Draw other reference tasks, by whose costs versions are compared from now on."),
]
PoolingDrift = Annotated[
    float,
    _field("Pooling drift", "Relative change of lookups per sample from which a table counts as drifted.", ge=0, le=10),
]
ReuseDrift = Annotated[
    float,
    _field("Reuse drift", "Share of distinct rows in another bin of reuse from which a table drifted.", ge=0, le=1),
]
ChangedShare = Annotated[
    float,
    _field("Changed share", "Share of changed tables from which a retraining starts; 0 for any change.", ge=0, le=1),
]
Start = Annotated[bool, _field("Start", "Start a retraining if one is due; otherwise only show what changed.")]
DatasetName = Annotated[str | None, _field("Name", "Name of the data set for people; by default the source's.")]
Versions = Annotated[
    list[str],
    _field(
        "Versions",
        "Versions (3, champion, paper:3, ...), cost_greedy, dreamshard_policy, rules of thumb, published rivals; gains are "
        "over the first.",
        min_length=1,
        examples=[["champion", "challenger"], ["paper:champion", "champion"]],
    ),
    ARGUMENT,
]
Version = Annotated[
    str | None,
    _field(
        "Version",
        "A version or alias (3, paper:3; previous undoes) that becomes champion at once. Empty: the newest placer of the "
        "fields below, if its evaluation says so.",
    ),
    ARGUMENT,
]
Reason = Annotated[str | None, _field("Reason", "Why the version becomes champion; recorded on it.")]
Rivals = Annotated[
    bool,
    _field("Rivals", "Compare the published rivals too; `rnn` learns first, by measuring placements."),
]
OlderThanDays = Annotated[
    int, _field("Older than days", "Days since a file was last written after which it may go.", ge=1, le=36_500)
]
Delete = Annotated[bool, _field("Delete", "Remove the files for good; otherwise only show them.")]

PlacedTables = Annotated[
    str,
    _field("Tables", "What to place: a list (.csv, .parquet, .json), model.py:make_model, or a bundled list's name."),
]
HardwareName = Annotated[
    str | None,
    _field("Hardware", "What the plan is for: a preset, e.g. h100, or a file of your own (.yaml, .json)."),
]
PlacerName = Annotated[
    str | None,
    _field(
        "Placer",
        "champion, challenger, previous, a version, paper or autoshard (their champions), paper:3, prior, cost_greedy, "
        "dreamshard_policy, a rule of thumb, or a rival. Empty: the best for the hardware, or the champion.",
    ),
]
ConstraintsText = Annotated[
    str | None,
    _field(
        "Constraints",
        "What the plan must respect, as YAML, or the full path of a file of it (docs/constraints-and-moving.md).",
        examples=["pin: {user_id: 0}\napart: [[user_id, item_id]]"],
    ),
]
Sharding = Annotated[
    str | None,
    _field("Sharding", "Ways to shard: auto (every way), columns, whole, or a list such as table_wise,row_wise."),
]
Cache = Annotated[
    bool, _field("Cache", "Tables may be in host memory with a cache on the device, where room is short.")
]
PlanInUse = Annotated[
    str | None, _field("Current", "The plan in use (full path): what a new one gains is weighed against what moves.")
]
TablesThen = Annotated[
    str | None,
    _field("Current tables", "The list as it was when the plan in use was made; by default as the plan says."),
]
StepsUntilNext = Annotated[
    float, _field("Steps until next", "Training steps until the next change, over which a gain counts.", ge=1, le=1e15)
]
MoveGbPerS = Annotated[
    float, _field("Move GB per s", "How fast all devices together move tables, GB/s.", ge=1e-6, le=1e6)
]
BudgetMs = Annotated[
    float | None,
    _field("Budget ms", "Work of the search: as much as an idle core does in this time.", ge=0, le=1e9),
]


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """The configuration that all other options override."""

    recipe: RecipeName = "default"


@dataclass(frozen=True, kw_only=True)
class RunOptions(RecipeOptions):
    """What is drawn, and where costs come from."""

    seed: Seed = 0
    testbed: TestbedName = None


@dataclass(frozen=True, kw_only=True)
class RetrainingOptions(RunOptions):
    """A retraining: the team's setting, what `watch` starts and `retrain` takes."""

    source: Source = None
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
class TaskOptions(RunOptions):
    """Tasks of tables that have been ingested."""

    dataset: Dataset = None
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
class RetrainOptions(RetrainingOptions):
    """The whole chain."""

    iterations: Iterations = None
    placements_per_iteration: PlacementsPerIteration = None
    full: Full = False
    new_reference: NewReference = False
    current: CurrentPlan = None
    no_promote: NoPromote = False


@dataclass(frozen=True, kw_only=True)
class WatchOptions(RetrainingOptions):
    """A look at a source of tables, and what counts as a change."""

    pooling_drift: PoolingDrift = 0.1
    reuse_drift: ReuseDrift = 0.1
    changed_share: ChangedShare = 0.0
    start: Start = True


@dataclass(frozen=True, kw_only=True)
class IngestOptions(RecipeOptions):
    """Tables to bring into the lake."""

    source: IngestedSource
    batches: Batches = None
    num_batches: NumBatches = None
    name: DatasetName = None
    batch_size: BatchSize = None


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(StageOptions):
    """The newest placer against rules of thumb and the champion."""

    rivals: Rivals = False
    current: CurrentPlan = None


@dataclass(frozen=True, kw_only=True)
class _Contestants:
    versions: Versions
    rivals: Rivals = False


@dataclass(frozen=True, kw_only=True)
class CompareOptions(TaskOptions, _Contestants):
    """Any versions, rules of thumb and published rivals against each other."""


@dataclass(frozen=True, kw_only=True)
class _Champion:
    version: Version = None
    reason: Reason = None
    no_promote: NoPromote = False


@dataclass(frozen=True, kw_only=True)
class PromoteOptions(StageOptions, _Champion):
    """The newest placer by its evaluation, or any version by hand."""


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Tables to place by hand, and what their plan must respect."""

    tables: PlacedTables
    num_devices: NumDevices = None
    memory_gb: MemoryGb = None
    hardware: HardwareName = None
    placer: PlacerName = None
    constraints: ConstraintsText = None
    sharding: Sharding = None
    reserve_gb: ReserveGb = None
    cache: Cache = False
    current: PlanInUse = None
    current_tables: TablesThen = None
    steps_until_next: StepsUntilNext = 100_000
    move_gb_per_s: MoveGbPerS = 10
    budget_ms: BudgetMs = None


@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """Files to remove."""

    older_than_days: OlderThanDays = 90
    delete: Delete = False
