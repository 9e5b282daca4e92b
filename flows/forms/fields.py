"""The fields of all options, each written once: its place in Prefect's form, its bounds, its name on the command line.

A field without a `typer` annotation is not on the command line.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from pydantic import Field

from dreamshard import names

REQUIRED = object()
"""Marks an option that may be empty in the form but not on the command line."""


def _form(title: str, description: str, **more: Any) -> Any:
    """How Prefect's form shows a field, and the field's bounds."""
    return Field(title=title, description=description, **more)


@dataclass(frozen=True)
class SchemaEntry:
    """An entry of a field's JSON schema, computed only when a form is drawn: `--help` must not wait for torch."""

    name: str
    value: Callable[[], Any]

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Add the entry to what pydantic derives from the type."""
        return handler(core) | {self.name: self.value()}


def _recipes() -> list[str]:
    from dreamshard.recipes import RECIPES

    return sorted(RECIPES)


def _testbeds() -> str:
    from dreamshard.testbeds.accelerators.specs import SPECS

    preset = rf"(:({'|'.join(SPECS)}|[^:]+\.(yaml|yml|json)))?"
    custom = r"(?!auto:|cluster:|emulated:|simulated:|traced:)[\w.]+:\w+"
    return rf"^(|auto|cluster(:ray)?(:cpu|:cuda)?|(emulated|simulated|traced){preset}|{custom})$"


def _sources() -> str:
    from dreamshard.workloads import bundled_workloads

    return rf"^(|{'|'.join(bundled_workloads())}|.*[./].*)$"


def _days(text: str | int) -> int:
    """Read `90d` or `90`."""
    number = re.fullmatch(r"0*([1-9]\d{0,4})d?", str(text).strip())
    if number is None:
        raise typer.BadParameter(f"{text!r} is not a number of days; give at least 1d, for example 90d")
    return int(number[1])


_SOURCE = _form(
    "Tables from",
    "A bundled workload's name, or a full path or URI: a list of tables (.csv, .parquet, or a TorchRec config as .json), "
    "lookups (.pt, .pt.gz, .tsv, .tsv.gz), a folder or bucket of these, or a function that makes a TorchRec model. "
    "A URI holds no user, password or query. Empty: the recipe's.",
    examples=["meta-dlrm-2021", "mlperf-dlrm-dcnv2", "s3://bucket/tables/", "/models/model.py:make_model"],
)
_SOURCES = SchemaEntry("pattern", _sources)

RecipeName = Annotated[
    str,
    _form("Recipe", "A complete configuration by name; every field below that is filled in overrides it."),
    SchemaEntry("enum", _recipes),
    typer.Option("--recipe", help="A complete configuration by name."),
]
Algorithm = Annotated[
    names.Algorithm | None,
    _form(
        "Algorithm",
        "dreamshard: this project's networks and search. paper: DreamShard as published, the policy alone. autoshard: "
        "AutoShard as published, which balances compute. Each has versions and champions of its own. Empty: the recipe's.",
    ),
    typer.Option(
        "--algorithm",
        help="dreamshard, or as published: paper (DreamShard), autoshard; each has versions and champions of its own.",
        show_default="the recipe's",
    ),
]
Seed = Annotated[
    int,
    _form("Seed", "Seeds every draw: tasks, weights, episodes. The same seed gives the same bits.", ge=0, le=2**31 - 1),
    typer.Option("--seed", help="Seed of every draw; the same seed gives the same bits."),
]
TestbedName = Annotated[
    str | None,
    _form(
        "Testbed",
        "Where costs come from: auto, cluster, emulated, simulated, traced, the last three also with :PRESET or a file of "
        "your hardware, or your own as package.module:factory. Empty: the recipe's.",
        examples=["auto", "cluster", "emulated:h200", "simulated", "simulated:v100"],
    ),
    SchemaEntry("pattern", _testbeds),
    typer.Option(
        "--testbed",
        help="auto, cluster, emulated[:PRESET], simulated[:PRESET], traced[:PRESET] or package.module:factory; PRESET may be "
        "a hardware file.",
        show_default="the recipe's",
    ),
]
Source = Annotated[
    str | None,
    _SOURCE,
    _SOURCES,
    typer.Option(
        "--source",
        help="Tables to use instead of the recipe's: a list (.csv, .parquet, .json), lookups (.pt, .tsv), a folder or bucket "
        "of these, a bundled workload's name, or model.py:make_model.",
    ),
]
Dataset = Annotated[
    str | None,
    _form(
        "Dataset version",
        "Version of the tables to work on, as `ingest` returned it. Empty: the newest.",
        json_schema_extra={"pattern": "^([0-9a-f]{12})?$"},
    ),
]
NumDevices = Annotated[
    int | None,
    _form("Devices", "Devices to place tables on. Empty: the recipe's.", ge=1, le=4096),
    typer.Option("--devices", help="Devices to place tables on.", show_default="the recipe's"),
]
DevicesPerHost = Annotated[
    int | None,
    _form(
        "Devices per host",
        "Devices that share a host. Empty: the recipe's, or as many as the hardware has.",
        ge=1,
        le=4096,
    ),
    typer.Option("--devices-per-host", help="Devices that share a host.", show_default="as many as the hardware has"),
]
ExchangeDevices = Annotated[
    str | None,
    _form(
        "All-to-alls of more devices",
        "Numbers of devices, such as 64, 128, whose all-to-alls are measured by themselves, so that the placer serves as "
        "many devices where the testbed can (simulated, traced, emulated, cluster). Empty: only up to the devices above.",
        json_schema_extra={"pattern": r"^( *[1-9]\d{0,3} *(,|$))*$"},
    ),
    typer.Option("--exchange-devices", help="Further numbers of devices to measure all-to-alls of, such as 64,128."),
]
MemoryGb = Annotated[
    float | None,
    _form("Memory per device, GiB", "Room for tables on each device. Empty: the recipe's.", gt=0, le=100_000),
    typer.Option("--memory-gb", min=0.001, help="Room for tables on each device, GiB.", show_default="the recipe's"),
]
ReserveGb = Annotated[
    float | None,
    _form(
        "Reserve per device, GiB",
        "Of the memory per device, kept free for dense parameters and activations. Empty: none.",
        ge=0,
        le=100_000,
    ),
    typer.Option(
        "--reserve-gb", help="Of each device's room, kept free for dense parameters, GiB.", show_default="none"
    ),
]
TablesPerTask = Annotated[
    int | None,
    _form("Tables per task", "Tables in each placement task. Empty: the recipe's.", ge=1, le=100_000),
    typer.Option("--tables-per-task", help="Tables in each placement task.", show_default="the recipe's"),
]
LearntMode = Annotated[
    Literal["auto", "fixed", "pool"] | None,
    _form(
        "What is learnt",
        "fixed: all tables are one model, which is measured against every rule of thumb and as it drifts. pool: half of the "
        "tables are held out, for models not seen yet. auto: by the number of tables. Empty: the recipe's.",
    ),
    typer.Option(
        "--mode", help="One fixed model, or a pool for models not seen yet; auto decides.", show_default="the recipe's"
    ),
]
BatchSize = Annotated[
    int | None,
    _form(
        "Batch size",
        "Training samples per pass over all devices. Empty: derived from tables and testbed.",
        ge=1,
        le=2**24,
    ),
    typer.Option("--batch-size", help="Training samples per pass over all devices.", show_default="derived"),
]
CurrentPlan = Annotated[
    str | None,
    _form(
        "Plan in use",
        "Full path of the PLAN.json that this model runs with now: measured beside the new placement. Empty: none.",
    ),
    typer.Option("--current", help="PLAN.json in use for this model: measured beside the new placement."),
]
Iterations = Annotated[
    int | None,
    _form(
        "Iterations",
        "Rounds of measure, fit, improve. Empty: the recipe's (the paper: 10; fewer from the champion).",
        ge=1,
        le=1000,
    ),
    typer.Option("--iterations", help="Rounds of measure, fit, improve.", show_default="the recipe's"),
]
PlacementsPerIteration = Annotated[
    int | None,
    _form(
        "Placements per iteration",
        "Placements measured on the testbed in each round. Empty: the recipe's (the paper: 10).",
        ge=1,
        le=10_000,
    ),
]
Full = Annotated[
    bool,
    _form(
        "From nothing",
        "Train in full. Off: continue from the champion where tables changed, with its cost samples and fewer "
        "measurements.",
    ),
    typer.Option("--full", help="Train from nothing instead of continuing from the champion."),
]
NoPromote = Annotated[
    bool,
    _form(
        "Try out",
        "Register the version without changing which one is in use: neither champion nor challenger, and no later "
        "training continues from it. Off: its evaluation decides.",
    ),
    typer.Option("--no-promote", help="Register the version, but leave the champion as it is: a try-out."),
]
NewReference = Annotated[
    bool,
    _form(
        "New reference set",
        "Draw other reference tasks for this hardware. Versions are compared by their costs on these, so those of versions "
        "before are not comparable with this one's.",
    ),
    typer.Option(
        "--new-reference", help="Draw other reference tasks, by whose costs versions are compared from now on."
    ),
]
PoolingDrift = Annotated[
    float,
    _form(
        "Drift of the pooling factor",
        "Relative change of a table's lookups per sample from which the table counts as drifted; 0.1 is 10 %.",
        ge=0,
        le=10,
    ),
]
ReuseDrift = Annotated[
    float,
    _form(
        "Drift of reuse",
        "Share of a table's distinct rows that are looked up more or less often (another of the 17 bins) from "
        "which the table counts as drifted.",
        ge=0,
        le=1,
    ),
]
ChangedShare = Annotated[
    float,
    _form(
        "Share of tables",
        "Share of the tables that must be added, removed, resized or drifted before a retraining starts; 0 for "
        "any of them.",
        ge=0,
        le=1,
    ),
]
Emit = Annotated[
    bool, _form("Start retraining", "Emit the event that starts it. Off: only look and show what changed.")
]
IngestedSource = Annotated[
    str | None,
    _SOURCE,
    _SOURCES,
    typer.Argument(
        help="A list (.csv, .parquet, .json), lookups (.pt, .pt.gz, .tsv, .tsv.gz), a folder or bucket of these, a bundled "
        "workload's name, or model.py:make_model."
    ),
    REQUIRED,
]
Batches = Annotated[
    str | None,
    _form(
        "Sample batches",
        "For a TorchRec model: a function without arguments that returns batches with KeyedJaggedTensors, as "
        "file.py:function or module:function. Empty: lookups by a Zipf law.",
        examples=["/models/data.py:make_batches"],
    ),
    typer.Option("--batches", help="For a TorchRec model: data.py:make_batches, which returns sample batches."),
]
NumBatches = Annotated[
    int | None,
    _form(
        "Number of batches",
        "Sample batches to read; all of their samples count as one batch. Empty: as many as the batch size takes.",
        ge=1,
        le=1_000_000,
    ),
    typer.Option(
        "--num-batches",
        help="Sample batches to read, together one batch.",
        show_default="as many as --batch-size takes",
    ),
]
DatasetName = Annotated[
    str | None,
    _form("Name", "Name of the data set for people. Empty: the source's name."),
    typer.Option("--name", help="Name of the data set for people."),
]
Seconds = Annotated[
    float | None,
    _form(
        "Seconds",
        "When to stop a collection of shard costs; the next run continues it. Empty: when it is complete.",
        gt=0,
    ),
    typer.Option("--seconds", min=1, help="When to stop a collection of shard costs."),
]
DeviceName = Annotated[
    Literal["auto", "cpu", "cuda"],
    _form("Device", "Where shard costs are collected: on a GPU if there is one, or as given."),
    typer.Option("--device", help="Where to collect shard costs."),
]
Versions = Annotated[
    list[str],
    _form(
        "Versions",
        "Who is compared: numbers of versions, champion, challenger, previous, those of another algorithm (paper:3), "
        "cost_greedy, dreamshard_policy, rules of thumb (e.g. lookup_greedy), published rivals. The first is what gains "
        "are over.",
        min_length=1,
        examples=[["champion", "challenger"], ["paper:champion", "champion"]],
    ),
    typer.Argument(
        metavar="VERSION...",
        help="Versions (3, champion, paper:3, ...), cost_greedy, dreamshard_policy, rules of thumb, published rivals; gains "
        "are over the first.",
    ),
]
Version = Annotated[
    str | None,
    _form(
        "Version",
        "Makes this version (or alias, e.g. previous) champion at once. Empty: the newest placer of the fields "
        "below becomes champion if its evaluation says so.",
        examples=["previous", "3", "paper:3"],
    ),
    typer.Argument(
        help="A version or alias (3, paper:3; previous undoes): champion of its algorithm at once, without the options."
    ),
]
Reason = Annotated[
    str | None,
    _form("Reason", "Why this version becomes champion; recorded on it. Empty: by hand."),
    typer.Option("--reason", help="Why VERSION becomes champion; recorded on it."),
]
OlderThanDays = Annotated[
    int,
    _form("Older than", "Days since a file was last written after which it may be removed.", ge=1, le=36_500),
    typer.Option("--older-than", parser=_days, metavar="DAYS", help="Days since a file was last written, e.g. 90d."),
]
Delete = Annotated[
    bool,
    _form("Delete", "Removes the files for good. Off: only shows what would be removed."),
    typer.Option("--yes", help="Remove the files for good; without this, nothing is removed."),
]
Peers = Annotated[
    bool,
    _form("Published rivals", "Compare the published rivals as well; some learn first, one by measuring placements."),
    typer.Option("--peers", help="Compare the published rivals as well; some learn first, and `rnn` measures."),
]
