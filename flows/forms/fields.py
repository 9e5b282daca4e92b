"""The parameters of all flows: what Prefect's form shows, and the complete configuration they stand for.

Titles, descriptions, choices and bounds live in these annotations, so that the form (`form.py`), the API and the call agree.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from dreamshard.recipes import RECIPES, Recipe, recipe, with_overrides
from dreamshard.testbeds.specs import SPECS
from dreamshard.workloads import shipped

_PRESET = f"(:({'|'.join(SPECS)}))?"
_OWN = r"(?!auto:|cluster:|emulated:|simulated:)[\w.]+:\w+"

RecipeName = Annotated[
    str,
    Field(
        title="Recipe",
        description="A complete configuration by name; every field below that is filled in overrides it.",
        json_schema_extra={"enum": sorted(RECIPES)},
    ),
]
Seed = Annotated[
    int,
    Field(
        title="Seed",
        ge=0,
        le=2**31 - 1,
        description="Of every draw: tasks, weights, episodes. The same seed gives the same bits.",
    ),
]
TestbedName = Annotated[
    str | None,
    Field(
        title="Testbed",
        description="Where costs come from: auto, cluster, emulated, simulated, the last two also with :PRESET, or own as "
        "package.module:factory. Empty: the recipe's.",
        json_schema_extra={"pattern": rf"^(|auto|cluster(:cpu|:cuda)?|(emulated|simulated){_PRESET}|{_OWN})$"},
        examples=["auto", "cluster", "emulated:h200", "simulated", "simulated:v100"],
    ),
]
Source = Annotated[
    str | None,
    Field(
        title="Tables from",
        description="A shipped workload's name, or a full path or URI: a .pt, .pt.gz, .tsv, .tsv.gz or .csv file, a TorchRec "
        "config as .json, or a folder or bucket of tables. Empty: the recipe's.",
        json_schema_extra={"pattern": rf"^(|{'|'.join(shipped())}|.*[./].*)$"},
        examples=["meta-dlrm-2021", "mlperf-dlrm-dcnv2", "s3://bucket/tables/"],
    ),
]
Dataset = Annotated[
    str | None,
    Field(
        title="Dataset version",
        description="Of the tables to work on, as `ingest` returned it. Empty: the newest.",
        json_schema_extra={"pattern": "^([0-9a-f]{12})?$"},
    ),
]
DatasetName = Annotated[
    str | None, Field(title="Name", description="What people call the data set. Empty: the source's name.")
]
NumDevices = Annotated[
    int | None, Field(title="Devices", ge=1, le=4096, description="Devices to place tables on. Empty: the recipe's.")
]
MemoryGb = Annotated[
    float | None,
    Field(
        title="Memory per device, GiB",
        gt=0,
        le=100_000,
        description="Room for tables on each device. Empty: the recipe's.",
    ),
]
TablesPerTask = Annotated[
    int | None,
    Field(title="Tables per task", ge=1, le=100_000, description="Tables in each placement task. Empty: the recipe's."),
]
Version = Annotated[
    str | None,
    Field(
        title="Version",
        description="Makes this version (or alias, e.g. previous) champion at once. Empty: the newest placer of the "
        "fields below becomes champion if its evaluation says so.",
        examples=["previous", "3"],
    ),
]
Versions = Annotated[
    list[str],
    Field(
        title="Versions",
        min_length=1,
        description="Who is compared: numbers of versions, champion, challenger, previous, cost_greedy, rules of thumb "
        "(e.g. lookup_greedy), published rivals. The first is what gains are over.",
        examples=[["champion", "challenger"]],
    ),
]
Peers = Annotated[
    bool, Field(title="Published rivals", description="Whether they take part as well; two of them are trained first.")
]
Reason = Annotated[str | None, Field(title="Reason", description="Why this version; kept on it. Empty: by hand.")]
Iterations = Annotated[
    int | None,
    Field(
        title="Iterations",
        ge=1,
        le=1000,
        description="Rounds of measure, fit, improve. Empty: the recipe's (the paper: 10; fewer from the champion).",
    ),
]
PlacementsPerIteration = Annotated[
    int | None,
    Field(
        title="Placements per iteration",
        ge=1,
        le=10_000,
        description="Placements measured on the testbed in each round. Empty: the recipe's (the paper: 10).",
    ),
]
Full = Annotated[
    bool,
    Field(
        title="From nothing",
        description="Train in full. Off: go on from the champion where tables changed, with its cost samples and fewer "
        "measurements.",
    ),
]
PoolingDrift = Annotated[
    float,
    Field(
        title="Drift of the pooling factor",
        ge=0,
        le=10,
        description="Relative change of a table's lookups per sample from which on it has drifted; 0.1 is 10 %.",
    ),
]
ReuseDrift = Annotated[
    float,
    Field(
        title="Drift of reuse",
        ge=0,
        le=1,
        description="Share of a table's distinct rows that are looked up more or less often (another of the 17 bins) from "
        "which on it has drifted.",
    ),
]
ChangedShare = Annotated[
    float,
    Field(
        title="Share of tables",
        ge=0,
        le=1,
        description="Share of the tables that must be added, removed, resized or drifted before a retraining starts; 0 for "
        "any of them.",
    ),
]
Emit = Annotated[
    bool,
    Field(title="Start retraining", description="Emit the event that starts it. Off: only look and show what changed."),
]

OlderThanDays = Annotated[
    int,
    Field(title="Older than", ge=1, le=36_500, description="Days since a file was written after which it may go."),
]
Delete = Annotated[
    bool, Field(title="Delete", description="Removes the files for good. Off: only shows what would be removed.")
]
Seconds = Annotated[
    float | None,
    Field(
        title="Seconds",
        gt=0,
        description="When to end a collection of costs, which goes on where it ended. Empty: when it is complete.",
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    Field(title="Device", description="Of a collection of costs: a GPU if there is one, or as given."),
]


def configure(
    name: str,
    *,
    testbed: str | None = None,
    source: str | None = None,
    num_devices: int | None = None,
    memory_gb: float | None = None,
    tables_per_task: int | None = None,
    iterations: int | None = None,
    placements_per_iteration: int | None = None,
) -> Recipe:
    """The recipe called `name` with everything else that is given in its place.

    Raises:
        ValueError: there is no such recipe; the message lists those there are.
    """
    base = with_overrides(recipe(name), testbed=testbed or None, source=source or None)
    tasks = {
        "num_devices": num_devices,
        "memory_bytes": None if memory_gb is None else round(memory_gb * 2**30),
        "tables_per_task": tables_per_task,
    }
    training = {
        "iterations": iterations,
        "warm_iterations": iterations,
        "placements_per_iteration": placements_per_iteration,
    }
    return replace(
        base, tasks=replace(base.tasks, **_given(tasks)), training=replace(base.training, **_given(training))
    )


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
