"""The options of every deployed flow: one pydantic model per flow, which its parameters and its command share.

A field is declared once: `memory_gb` is a parameter of the flow and `--memory-gb` on the command line, and its text
describes it in both. An empty field of a deployment has the deployment's value, then the recipe's (`configuration.py`).
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dreamshard.recipes import RECIPES
from dreamshard.tables import Optimizer, Precision
from dreamshard.training.config import Algorithm as AlgorithmName

Mode = Literal["auto", "fixed", "pool"]
PlanPolicy = Literal["auto", "approve", "off"]
Constraints = Annotated[
    str | None,
    Field(
        description="Constraints of the plan, as YAML or the full path of a file of it (docs/constraints-and-moving.md).",
        examples=["pin: {user_id: 0}\napart: [[user_id, item_id]]"],
    ),
]
Sharding = Annotated[
    str | None,
    Field(
        description="Ways to shard: columns, whole, auto (every way), or a list such as table_wise,row_wise. Costs of ways "
        "other than whole and columns are predicted, not measured."
    ),
]
Algorithm = Annotated[AlgorithmName | None, Field(description="dreamshard; paper: as published; autoshard: after it.")]
Current = Annotated[
    str | None, Field(description="The plan in use (full path): weighed or measured against the new one.")
]
Rivals = Annotated[bool, Field(description="Compare published rivals too.")]
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum")


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
        is_wrong = not isinstance(values, dict)
        return values if is_wrong else {name: value for name, value in values.items() if value not in ("", None)}


class ModelField(Options):
    """The model whose tables are measured, trained on or placed."""

    model: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=60)
    """Name of the model: small letters, digits, hyphens; by default its source's. Models never replace each other."""


class RecipeOptions(ModelField):
    """The configuration that all other options override."""

    recipe: str = Field(default="default", json_schema_extra={"enum": [*sorted(RECIPES)]})
    """A complete configuration by name; fields that are filled in override it."""


class RunOptions(RecipeOptions):
    """Tasks, and the source of costs."""

    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seed of every draw; the same gives the same bits."""
    testbed: str | None = None
    """Where costs come from: auto, cluster, emulated[:PRESET], simulated[:PRESET] or package.module:factory; PRESET may
    be a hardware file."""


class SourceFields(Options):
    """Where tables come from."""

    source: str | None = Field(default=None, kw_only=False)
    """Tables: a list (.csv, .parquet, .json), lookups (.pt, .tsv), a folder or bucket of these, a
    bundled list's name, or model.py:make_model. In Prefect's form by full path."""
    batches: str | None = None
    """Of a TorchRec model: data.py:make_batches."""
    batch_size: int | None = Field(default=None, ge=1, le=2**24)
    """Training samples per pass over all devices."""


class DeviceFields(Options):
    """The devices that tables are placed on."""

    devices: int | None = Field(default=None, ge=1, le=4096)
    """Devices to place tables on."""
    devices_per_host: int | None = Field(default=None, ge=1)
    """Devices that share a host; by default the hardware's."""
    memory_gb: float | None = Field(default=None, gt=0, le=1e5)
    """Room for tables on each device, GiB."""
    reserve_gb: float | None = Field(default=None, ge=0)
    """Of each device's room, kept for dense parameters."""


class TaskFields(DeviceFields):
    """The tasks of training."""

    tables_per_task: int | None = Field(default=None, ge=1)
    """Tables in each placement task of a pool."""
    mode: Mode | None = None
    """fixed: all tables are one model. pool: for models not seen yet."""
    exchange_devices: list[Annotated[int, Field(ge=2, le=4096)]] = []
    """More numbers of devices whose all-to-alls are measured."""


class RetrainingOptions(TaskFields, RunOptions, SourceFields):
    """A retraining: the setting of a model's deployments, which `watch` starts and `retrain` takes."""

    algorithm: Algorithm = None
    plan: PlanPolicy | None = None
    """Put the new plan into use: auto, once a person approves it in Prefect, or off for no plan. By default the first is
    auto, later ones need approval."""
    constraints: Constraints = None
    sharding: Sharding = None
    profiles: str | None = None
    """Folder or address (s3://...) in which the job's profiles are folders: `watch` learns from new ones."""

    def given(self) -> dict[str, Any]:
        """The fields of a retraining that differ from their defaults, without a subclass's own."""
        return self.model_dump(exclude_defaults=True, include=set(RetrainingOptions.model_fields))


class RetrainOptions(RetrainingOptions):
    """The whole chain."""

    iterations: int | None = Field(default=None, ge=1, le=1000)
    """Rounds of measure, fit, improve."""
    placements_per_iteration: int | None = Field(default=None, ge=1, le=10_000)
    """Placements measured in each round."""
    full: bool = False
    """Train from scratch instead of continuing from the champion."""
    current: Current = None


class WatchOptions(RetrainingOptions):
    """A look at a source of tables, and the thresholds of change."""

    pooling_drift: float = Field(default=0.1, ge=0, le=10)
    """Relative change of lookups per sample from which a table drifted."""
    reuse_drift: float = Field(default=0.1, ge=0, le=1)
    """Share of distinct rows in another bin of reuse from which it drifted."""
    changed_share: float = Field(default=0.0, ge=0, le=1)
    """Share of changed tables from which a retraining starts."""
    start: bool = True
    """Start a retraining if one is due; otherwise only show changes."""


class IngestOptions(RecipeOptions, SourceFields):
    """Tables to bring into the lake."""


class StageOptions(TaskFields, RunOptions):
    """One stage of a training."""

    dataset: str | None = None
    """Version of the tables; by default the one ingested last."""
    algorithm: Algorithm = None


class EvaluateOptions(StageOptions):
    """The newest placer against rules of thumb and the champion."""

    rivals: Rivals = False
    current: Current = None


class VersionsField(Options):
    """Placers to compare."""

    versions: list[str] = Field(
        min_length=1,
        kw_only=False,
        examples=[["champion", "challenger"], ["models:/dreamshard.ads.a100-x8@champion", "3"]],
    )
    """Versions (3, champion, models:/NAME/3), cost_greedy, dreamshard_policy, rules of thumb, rivals;
    the table shows what the first saves over each."""


class CompareOptions(ModelField, VersionsField):
    """Any versions, rules of thumb and published rivals against each other, in the setting of the first version."""

    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seed of the tasks and of noise."""
    rivals: Rivals = False


class VersionField(Options):
    """A version to use."""

    version: str | None = Field(default=None, kw_only=False)
    """A version (3, models:/NAME/3; previous rolls back) that becomes champion at once."""


class PromoteOptions(ModelField, VersionField):
    """A version or plan that a person takes into use."""

    plan: str | None = Field(default=None, pattern=r"^(\d+|previous)$")
    """Number of the model's plan that its trainer reads from now on; previous rolls back."""
    reason: str | None = None
    """Why; recorded with the decision."""
    ask: bool = False
    """Wait until a person approves it on the page of this run."""


class TablesField(Options):
    """Tables that a person names."""

    tables: str = Field(min_length=1, kw_only=False)
    """A list (.csv, .parquet, .json), model.py:make_model, or a bundled list."""


class WaysFields(Options):
    """How tables may be placed."""

    constraints: Constraints = None
    sharding: Sharding = None
    cache: bool = False
    """Tables may be in host memory with a cache where room is short."""
    precision: Precision | None = None
    """Type of the weights; by default the model's, or fp32."""
    optimizer: Optimizer | None = None
    """Optimizer, whose state takes room; by default the model's, or sgd."""
    batch_size: int | None = Field(default=None, ge=1)
    """Training samples per step of all devices; by default as measured."""
    budget_ms: float | None = Field(default=None, ge=0)
    """Work of the search: as much as an idle core does in this time."""


class WhatIfOptions(WaysFields, TablesField):
    """Clusters to compare."""

    hardware: str
    """Presets or files with a number of devices, e.g. a100:8,my.yaml:64; a100:64/16 is in groups of 16
    with all tables each (TorchRec's DMPCollection)."""
    sync_every: int = Field(default=1, ge=1)
    """Steps between two syncs of such groups."""


class PlanOptions(ModelField, DeviceFields, WaysFields, TablesField):
    """Target of a plan; devices and memory are by default the version's."""

    hardware: str | None = None
    """Hardware of the plan: a preset, e.g. h100, or a file (.yaml, .json)."""
    placer: str | None = None
    """champion, challenger, previous, a version (3, models:/NAME/3), the folder or address of a saved
    placer, prior, cost_greedy, dreamshard_policy, a rule of thumb, or a rival. Empty: the best for the
    hardware, or the champion."""


class PlaceOptions(PlanOptions):
    """Tables to place by hand, and constraints of their plan."""

    current: Current = None
    steps_until_next: float = Field(default=100_000, ge=1)
    """Training steps over which a gain over the plan in use counts."""
    move_gb_per_s: float = Field(default=10, ge=1e-6)
    """How fast all devices together move tables, GB/s."""


class ProfilesField(Options):
    """Profiles of a running job."""

    profiles: list[str] = Field(min_length=1, kw_only=False)
    """Folders or addresses (s3://...), oldest first, each with traces rank*.json.gz, plan.json, tables.json and job.json, as
    dreamshard.torchrec.profiled_steps writes them."""


class LearnOptions(ModelField, DeviceFields, WaysFields, ProfilesField):
    """Profiles of a running job, and what their folders do not say; by default the plan has whole tables, columns, and the
    sharding types in use."""

    plan: str | None = None
    """The plan that ran; by default plan.json of each profile."""
    tables: str | None = None
    """The job's tables, as for place; by default tables.json of each profile."""
    hardware: str | None = None
    """Preset that the traces correct; by default that of the traced GPU."""


class PruneOptions(Options):
    """Files to remove."""

    older_than_days: int = Field(default=90, ge=1, le=36_500)
    """Days since a file was last written after which it may go."""
    keep_versions: int = Field(default=20, ge=1)
    """Newest versions of each model and topology that stay whatever their age, besides those in use or tagged pinned."""
    delete: bool = False
    """Remove the files for good; otherwise only show them."""
