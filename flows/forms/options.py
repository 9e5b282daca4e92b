"""The options of every deployed flow: one pydantic model per flow, which its parameters and its command share.

A field is declared once: `memory_gb` is a parameter of the flow and `--memory-gb` on the command line, and its text
describes it in both. An empty field of a deployment has the deployment's value, then the recipe's (`form.configure`).
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dreamshard.hardware.accelerator import PRESETS
from dreamshard.recipes import RECIPES
from dreamshard.tables import Optimizer, Precision
from dreamshard.training.config import Algorithm as AlgorithmName

ModelName = Annotated[str | None, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=60)]
Count = Annotated[int | None, Field(ge=1)]
Amount = Annotated[float | None, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum")
_PRESET = rf"({'|'.join(PRESETS)}|.+\.(yaml|yml|json))"
# what Prefect's page refuses: a worker has no folder for relative paths


def _only(pattern: str) -> dict[str, Any]:
    return {"pattern": f"^({pattern})?$"}


_SOURCE = _only(r"(/|\w+://).+|[\w-]+|(?!.+\.py:)[\w.]+:\w+")  # or a bundled list, or a package's function


def _as_drawn(schema: dict[str, Any]) -> None:
    """Write the schema as Prefect's page draws it well.

    An optional field has the schema of its type alone, since the page shows a choice of null as a second tab; bounds
    stand below `allOf`, since the page drops those next to a type.
    """
    for field in schema["properties"].values():
        for choice in field.pop("anyOf", ()):
            field.update(choice if choice["type"] != "null" else {})
        if field.get("default", ...) is None:
            del field["default"]
        if bounds := {name: field.pop(name) for name in _BOUNDS if name in field}:
            field["allOf"] = [bounds]


class Options(BaseModel):
    """Options by keyword; a command also takes a first field that says `kw_only=False` as its argument."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra=_as_drawn,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Let the command line take fields by name alone, unless they say otherwise."""
        for field in cls.model_fields.values():
            field.kw_only = field.kw_only is not False

    @model_validator(mode="before")
    @classmethod
    def _without_empty_fields(cls, values: Any) -> Any:
        is_given = isinstance(values, dict)
        return {name: value for name, value in values.items() if value not in ("", None)} if is_given else values


class CurrentField(Options):
    """The plan that a new one is compared with."""

    current: str | None = Field(default=None, json_schema_extra=_only(r"(/|\w+://).+"))
    """Plan that your trainer uses now (in Prefect's form, its full path), to compare the new plan with."""


class LimitFields(Options):
    """Limits on a plan."""

    constraints: str | None = Field(default=None, examples=["pin: {user_id: 0}\napart: [[user_id, item_id]]"])
    """Constraints on the plan: YAML, or a YAML file (in Prefect's form, its full path). See
    docs/constraints-and-moving.md."""
    sharding: str | None = None
    """Sharding types to use: columns, whole, auto (all), or a list such as table_wise,row_wise. Types other than whole and
    columns are placed by predicted costs; training does not measure them."""


class ModelField(Options):
    """The model whose tables are measured, trained on or placed."""

    model: ModelName = None
    """Model name, in lower-case letters, digits and hyphens; by default from the source. Each model has its own versions."""


class RecipeOptions(ModelField):
    """The configuration that all other options override."""

    recipe: str = Field(default="default", json_schema_extra={"enum": [*sorted(RECIPES)]})
    """Configuration to start from; other options override it."""


class RunOptions(RecipeOptions):
    """Tasks, and the source of costs."""

    seed: Seed = 0
    """Random seed; with a simulated testbed, the same seed and options give the same result."""
    algorithm: AlgorithmName | None = None
    """Learning method: dreamshard, paper (DreamShard as published) or autoshard."""
    testbed: str | None = Field(
        default=None,
        json_schema_extra=_only(
            rf"auto|cluster(:.+)?|(emulated|simulated)(:{_PRESET})?|(?!cluster|emulated|simulated).+:.+"
        ),
    )
    """Testbed that measures costs: auto, cluster, emulated[:PRESET], simulated[:PRESET] or package.module:factory. PRESET
    may be a hardware file."""


class SourceFields(Options):
    """Where tables come from."""

    source: str | None = Field(default=None, kw_only=False, json_schema_extra=_SOURCE)
    """Source of the tables: a list (.csv, .parquet, .json), lookups (.pt, .tsv), a folder or bucket of these, a bundled
    list's name, or model.py:make_model. Prefect's form needs full paths."""
    batches: str | None = None
    """Function that yields sample batches for a TorchRec model, as data.py:make_batches."""
    batch_size: int | None = Field(default=None, ge=1, le=2**24)
    """Training samples per step, over all devices."""


class MemoryFields(Options):
    """Memory of each device."""

    memory_gb: float | None = Field(default=None, gt=0, le=1e5)
    """GiB per device for tables, before the reserve is subtracted."""
    reserve_gb: Amount = None
    """GiB per device reserved for dense parameters and activations."""


class DeviceFields(MemoryFields):
    """The devices that tables are placed on."""

    devices: int | None = Field(default=None, ge=1, le=4096)
    """Number of devices to place tables on."""
    devices_per_host: Count = None
    """Devices per host; by default the hardware's."""


class TaskFields(DeviceFields):
    """The tasks of training."""

    tables_per_task: Count = None
    """Tables per training task, in pool mode."""
    mode: Literal["auto", "fixed", "pool"] | None = None
    """Training mode: fixed for one model with all tables, pool for models not seen yet."""
    exchange_devices: list[Annotated[int, Field(ge=2, le=4096)]] = []
    """Further device counts to measure all-to-alls for."""


class RetrainingOptions(LimitFields, TaskFields, RunOptions, SourceFields):
    """A retraining: the setting of a model's deployments, which `watch` starts and `retrain` takes."""

    plan: Literal["auto", "approve", "off"] | None = None
    """When a new plan becomes current: auto (at once) or approve (when a person approves it); off makes no plan. By default
    the first plan is auto, and later ones need approval."""
    profiles: str | None = None
    """Folder or address (s3://...) with one folder per profile of the job; the deployment `watch` learns from new ones."""

    def given(self) -> dict[str, Any]:
        """The fields of a retraining that differ from their defaults, without a subclass's fields."""
        return self.model_dump(exclude_defaults=True, include=set(RetrainingOptions.model_fields))


class RetrainOptions(CurrentField, RetrainingOptions):
    """The whole chain."""

    iterations: int | None = Field(default=None, ge=1, le=1000)
    """Training iterations; each measures, fits and improves."""
    placements_per_iteration: int | None = Field(default=None, ge=1, le=10_000)
    """Placements to measure per iteration."""
    full: bool = False
    """Train from scratch instead of continuing from the champion."""


class WatchOptions(RetrainingOptions):
    """A look at a source of tables, and the thresholds of change."""

    pooling_drift: float = Field(default=0.1, ge=0, le=10)
    """Relative change in lookups per sample that counts as drift."""
    reuse_drift: float = Field(default=0.1, ge=0, le=1)
    """Share of distinct rows in another reuse bin that counts as drift."""
    changed_share: float = Field(default=0.0, ge=0, le=1)
    """Share of tables that must change before a retraining starts."""
    start: bool = True
    """Start a retraining if it is due; otherwise only report changes."""


class IngestOptions(RecipeOptions, SourceFields):
    """Tables to bring into the lake."""


class StageOptions(TaskFields, RunOptions):
    """One stage of a training."""

    model: ModelName = None
    """Model name; by default the model of the tables ingested last."""
    dataset: str | None = None
    """Dataset version of the tables; by default the last one ingested."""


class EvaluateOptions(CurrentField, StageOptions):
    """Comparison of the newest placer with the heuristics and the champion."""


class VersionsField(Options):
    """Placers to compare."""

    versions: list[str] = Field(
        min_length=1,
        kw_only=False,
        examples=[["champion", "challenger"], ["models:/dreamshard.ads.a100-x8@champion", "3"]],
    )
    """Placers to compare: versions (3, champion, models:/NAME/3), cost_greedy, dreamshard_policy, heuristics,
    torchrec_planner. The table shows what the first one saves over the others."""


class CompareOptions(ModelField, VersionsField):
    """Comparison of versions, heuristics and TorchRec's planner, in the setting of the first version."""

    model: ModelName = None
    """Model name; needed if there are several."""
    seed: Seed = 0
    """Random seed of the tasks and of noise."""


class VersionField(Options):
    """A version to use; in a class of its own, as what comes first at the command line is in the last base."""

    version: str | None = Field(default=None, kw_only=False)
    """Version to make champion at once: 3, models:/NAME/3, or previous to roll back."""


class PromoteOptions(ModelField, VersionField):
    """A version or plan that a person chooses."""

    model: ModelName = None
    """Model name; needed for a plan, or if there are several models."""
    plan: str | None = Field(default=None, pattern=r"^(\d+|previous)$")
    """Number of the plan to make current for the model, or previous to roll back."""
    reason: str | None = None
    """Reason, recorded with the decision."""


class PromotionForm(PromoteOptions):
    """The same for Prefect, where a person can answer."""

    ask: bool = False
    """Wait for approval on this run's Prefect page."""


class TablesField(Options):
    """Tables that a person names."""

    tables: str = Field(min_length=1, kw_only=False, json_schema_extra=_SOURCE)
    """Tables: a list (.csv, .parquet, .json), a bundled list's name, or model.py:make_model."""


class ShardingFields(LimitFields):
    """How tables may be placed."""

    cache: bool = False
    """Allow tables in host memory with a cache on the device, where that makes room for a cheaper plan."""
    precision: Precision | None = None
    """Precision of the weights; by default the model's, or fp32."""
    optimizer: Optimizer | None = None
    """Optimizer, whose state takes memory; by default the model's, or sgd."""
    batch_size: Count = None
    """Training samples per step, over all devices; by default as measured."""
    budget_ms: Amount = None
    """Search effort, as milliseconds of one idle core."""


class WhatIfOptions(MemoryFields, ShardingFields, TablesField):
    """Clusters to compare."""

    hardware: str
    """Clusters to compare: presets or hardware files with a number of devices, e.g. a100:8,my.yaml:64. a100:64/16 means
    groups of 16 that each hold all tables (TorchRec's DMPCollection)."""
    sync_every: int = Field(default=1, ge=1)
    """Steps between two syncs of groups."""


class PlanOptions(ModelField, DeviceFields, ShardingFields, TablesField):
    """Target of a plan; devices and memory default to the version's."""

    hardware: str | None = Field(default=None, json_schema_extra=_only(_PRESET))
    """Hardware to plan for: a preset, e.g. h100, or a hardware file (.yaml, .json)."""
    placer: str | None = None
    """Placer to use: champion, challenger, previous, a version (3, models:/NAME/3), the folder or address of a saved placer,
    prior, cost_greedy, dreamshard_policy, a heuristic or a published placer. By default the best one for the hardware, or
    the champion."""


class PlaceOptions(CurrentField, PlanOptions):
    """Tables to place, and constraints on the plan."""

    steps_until_next: float = Field(default=100_000, ge=1)
    """Training steps over which moving tables must pay off."""
    move_gb_per_s: float = Field(default=10, ge=1e-6)
    """Speed of moving tables, over all devices together, in GB/s."""
    format: Literal["json", "csv", "torchrec"] = "json"
    """Format of the plan; torchrec is JSON with only the sharding types that TorchRec's sharders run."""
    device_type: Literal["cuda", "cpu"] = "cuda"
    """Device type of the ranks, for the format torchrec."""


class ProfilesField(Options):
    """Profiles of a running job."""

    profiles: list[str] = Field(min_length=1, kw_only=False)
    """Profiles to learn from, oldest first: folders or addresses (s3://...) that dreamshard.profiled_steps wrote, each with
    rank*.json.gz, plan.json, tables.json and job.json."""


class LearnOptions(ModelField, DeviceFields, ShardingFields, ProfilesField):
    """Profiles of a running job, and settings that they lack; by default the plan may use whole tables, columns, and the
    job's sharding types."""

    plan: str | None = None
    """Plan that the job ran; by default plan.json of each profile."""
    tables: str | None = None
    """Tables of the job, as for place; by default tables.json of each profile."""
    hardware: str | None = None
    """Hardware preset to correct by the traces; by default the traced GPU's."""


class PruneOptions(Options):
    """Files to remove."""

    older_than_days: int = Field(default=90, ge=1, le=36_500)
    """Minimum age of files to remove, in days since they were last written."""
    keep_versions: int = Field(default=20, ge=1)
    """Number of newest versions to keep per model and topology, besides versions in use or tagged pinned."""
    delete: bool = False
    """Remove the files for good; otherwise only list them."""
