"""The fields of all options, each written once: its place in Prefect's form, its bounds, its name on the command line.

A field without a `typer` annotation is not on the command line.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from pydantic import Field

Device = Literal["auto", "cpu", "cuda"]

REQUIRED = object()
"""Marks an option that may be empty in the form but not on the command line."""


@dataclass(frozen=True)
class SchemaEntry:
    """An entry of a field's JSON schema, computed only when a form is drawn: `--help` must not wait for torch.

    Attributes:
        name: e.g. `enum` or `pattern`.
        value: computes the entry.
    """

    name: str
    value: Callable[[], Any]

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        """Add the entry to what pydantic derives from the type."""
        return handler(core_schema) | {self.name: self.value()}


def _recipes() -> list[str]:
    from dreamshard.recipes import RECIPES

    return sorted(RECIPES)


def _testbeds() -> str:
    from dreamshard.testbeds.specs import SPECS

    preset = f"(:({'|'.join(SPECS)}))?"
    custom = r"(?!auto:|cluster:|emulated:|simulated:)[\w.]+:\w+"
    return rf"^(|auto|cluster(:cpu|:cuda)?|(emulated|simulated){preset}|{custom})$"


def _sources() -> str:
    from dreamshard.workloads import bundled_workloads

    return rf"^(|{'|'.join(bundled_workloads())}|.*[./].*)$"


def _days(text: str | int) -> int:
    """`90d` or `90`."""
    number = re.fullmatch(r"(\d{1,5})d?", str(text).strip())
    if number is None or int(number[1]) < 1:
        raise typer.BadParameter(f"{text!r} is no number of days; give for example 90d, at least 1d")
    return int(number[1])


_SOURCE = Field(
    title="Tables from",
    description="A bundled workload's name, or a full path or URI: a .pt, .pt.gz, .tsv, .tsv.gz or .csv file, a TorchRec "
    "config as .json, or a folder or bucket of tables. Empty: the recipe's.",
    examples=["meta-dlrm-2021", "mlperf-dlrm-dcnv2", "s3://bucket/tables/"],
)


RecipeName = Annotated[
    str,
    Field(
        title="Recipe",
        description="A complete configuration by name; every field below that is filled in overrides it.",
    ),
    SchemaEntry("enum", _recipes),
    typer.Option("--recipe", help="A complete configuration by name."),
]
Seed = Annotated[
    int,
    Field(
        title="Seed",
        ge=0,
        le=2**31 - 1,
        description="Of every draw: tasks, weights, episodes. The same seed gives the same bits.",
    ),
    typer.Option("--seed", help="Of every draw; the same seed gives the same bits."),
]
TestbedName = Annotated[
    str | None,
    Field(
        title="Testbed",
        description="Where costs come from: auto, cluster, emulated, simulated, the last two also with :PRESET, or "
        "your own as package.module:factory. Empty: the recipe's.",
        examples=["auto", "cluster", "emulated:h200", "simulated", "simulated:v100"],
    ),
    SchemaEntry("pattern", _testbeds),
    typer.Option(
        "--testbed",
        help="auto, cluster, emulated[:PRESET], simulated[:PRESET] or package.module:factory.",
        show_default="the recipe's",
    ),
]
Source = Annotated[
    str | None,
    _SOURCE,
    SchemaEntry("pattern", _sources),
    typer.Option("--source", help="Other tables than the recipe's."),
]
Dataset = Annotated[
    str | None,
    Field(
        title="Dataset version",
        description="Of the tables to work on, as `ingest` returned it. Empty: the newest.",
        json_schema_extra={"pattern": "^([0-9a-f]{12})?$"},
    ),
]
NumDevices = Annotated[
    int | None,
    Field(title="Devices", ge=1, le=4096, description="Devices to place tables on. Empty: the recipe's."),
    typer.Option("--devices", help="To place tables on.", show_default="the recipe's"),
]
MemoryGb = Annotated[
    float | None,
    Field(
        title="Memory per device, GiB",
        gt=0,
        le=100_000,
        description="Room for tables on each device. Empty: the recipe's.",
    ),
    typer.Option("--memory-gb", min=0.001, help="Room for tables on each, GiB.", show_default="the recipe's"),
]
TablesPerTask = Annotated[
    int | None,
    Field(title="Tables per task", ge=1, le=100_000, description="Tables in each placement task. Empty: the recipe's."),
    typer.Option("--tables-per-task", help="In each placement task.", show_default="the recipe's"),
]
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
        description="Train in full. Off: continue from the champion where tables changed, with its cost samples and "
        "fewer measurements.",
    ),
    typer.Option("--full", help="Train from nothing instead of continuing from the champion."),
]
PoolingDrift = Annotated[
    float,
    Field(
        title="Drift of the pooling factor",
        ge=0,
        le=10,
        description="Relative change of a table's lookups per sample from which the table counts as drifted; 0.1 is "
        "10 %.",
    ),
]
ReuseDrift = Annotated[
    float,
    Field(
        title="Drift of reuse",
        ge=0,
        le=1,
        description="Share of a table's distinct rows that are looked up more or less often (another of the 17 bins) "
        "from which the table counts as drifted.",
    ),
]
ChangedShare = Annotated[
    float,
    Field(
        title="Share of tables",
        ge=0,
        le=1,
        description="Share of the tables that must be added, removed, resized or drifted before a retraining starts; "
        "0 for any of them.",
    ),
]
Emit = Annotated[
    bool,
    Field(title="Start retraining", description="Emit the event that starts it. Off: only look and show what changed."),
]
IngestedSource = Annotated[
    str | None,
    _SOURCE,
    SchemaEntry("pattern", _sources),
    typer.Argument(help="A .pt, .pt.gz, .tsv, .tsv.gz or .csv file, or a bundled workload's name."),
    REQUIRED,
]
DatasetName = Annotated[
    str | None,
    Field(title="Name", description="What people call the data set. Empty: the source's name."),
    typer.Option("--name", help="What to call the data set."),
]
Seconds = Annotated[
    float | None,
    Field(
        title="Seconds",
        gt=0,
        description="When to stop a collection of shard costs; the next run continues it. Empty: when it is complete.",
    ),
    typer.Option("--seconds", min=1, help="When to stop a collection of shard costs."),
]
DeviceName = Annotated[
    Device,
    Field(title="Device", description="Where shard costs are collected: on a GPU if there is one, or as given."),
    typer.Option("--device", help="Where to collect shard costs."),
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
    typer.Argument(
        metavar="VERSION...",
        help="Versions, champion, challenger, previous, cost_greedy, rules of thumb, published rivals; gains are over "
        "the first.",
    ),
]
Version = Annotated[
    str | None,
    Field(
        title="Version",
        description="Makes this version (or alias, e.g. previous) champion at once. Empty: the newest placer of the "
        "fields below becomes champion if its evaluation says so.",
        examples=["previous", "3"],
    ),
    typer.Argument(help="A version or alias (previous undoes): champion at once, without the options."),
]
Reason = Annotated[
    str | None,
    Field(title="Reason", description="Why this version; kept on it. Empty: by hand."),
    typer.Option("--reason", help="Why this VERSION; kept on it."),
]
OlderThanDays = Annotated[
    int,
    Field(title="Older than", ge=1, le=36_500, description="Days since a file was written after which it may go."),
    typer.Option("--older-than", parser=_days, metavar="DAYS", help="Since it was written, e.g. 90d."),
]
Delete = Annotated[
    bool,
    Field(title="Delete", description="Removes the files for good. Off: only shows what would be removed."),
    typer.Option("--yes", help="Remove it for good; without this nothing is removed."),
]
Peers = Annotated[
    bool,
    Field(title="Published rivals", description="Whether they take part as well; two of them are trained first."),
    typer.Option("--peers", help="The published rivals as well; two of them are trained first, in seconds."),
]
