"""The fields of the chain's options, once each: place in Prefect's form, bounds, name on the command line.

A field without a `typer` annotation is not on the command line.
"""

from typing import Annotated, Literal

import typer

from dreamshard import names
from flows.forms.field_parts import REQUIRED, SchemaEntry, in_form


def _recipes() -> list[str]:
    from dreamshard.recipes import RECIPES

    return sorted(RECIPES)


def _testbeds() -> str:
    from dreamshard.hardware.accelerator import PRESETS

    preset = rf"(:({'|'.join(PRESETS)}|[^:]+\.(yaml|yml|json)))?"
    custom = r"(?!auto:|cluster:|emulated:|simulated:)[\w.]+:\w+"
    return rf"^(|auto|cluster(:ray)?(:cpu|:cuda)?|(emulated|simulated){preset}|{custom})$"


def _sources() -> str:
    from dreamshard.workloads import bundled_workloads

    return rf"^(|{'|'.join(bundled_workloads())}|.*[./].*)$"


_SOURCE = in_form(
    "Tables from",
    "A bundled workload's name, or a full path or URI: a list of tables (.csv, .parquet, or a TorchRec config as .json), "
    "lookups (.pt, .pt.gz, .tsv, .tsv.gz), a folder or bucket of these, or a function that makes a TorchRec model. "
    "A URI holds no user, password or query. Empty: the recipe's.",
    examples=["meta-dlrm-2021", "mlperf-dlrm-dcnv2", "s3://bucket/tables/", "/models/model.py:make_model"],
)
_SOURCES = SchemaEntry("pattern", _sources)

RecipeName = Annotated[
    str,
    in_form("Recipe", "A complete configuration by name; every field below that is filled in overrides it."),
    SchemaEntry("enum", _recipes),
    typer.Option("--recipe", help="A complete configuration by name."),
]
Algorithm = Annotated[
    names.Algorithm | None,
    in_form(
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
    in_form(
        "Seed", "Seeds every draw: tasks, weights, episodes. The same seed gives the same bits.", ge=0, le=2**31 - 1
    ),
    typer.Option("--seed", help="Seed of every draw; the same seed gives the same bits."),
]
TestbedName = Annotated[
    str | None,
    in_form(
        "Testbed",
        "Where costs come from: auto, cluster, emulated, simulated, the last two also with :PRESET or a file of "
        "your hardware, or your own as package.module:factory. Empty: the recipe's.",
        examples=["auto", "cluster", "emulated:h200", "simulated", "simulated:v100"],
    ),
    SchemaEntry("pattern", _testbeds),
    typer.Option(
        "--testbed",
        help="auto, cluster, emulated[:PRESET], simulated[:PRESET] or package.module:factory; PRESET may be "
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
    in_form(
        "Dataset version",
        "Version of the tables to work on, as `ingest` returned it. Empty: the newest.",
        json_schema_extra={"pattern": "^([0-9a-f]{12})?$"},
    ),
]
NumDevices = Annotated[
    int | None,
    in_form("Devices", "Devices to place tables on. Empty: the recipe's.", ge=1, le=4096),
    typer.Option("--devices", help="Devices to place tables on.", show_default="the recipe's"),
]
DevicesPerHost = Annotated[
    int | None,
    in_form(
        "Devices per host",
        "Devices that share a host. Empty: the recipe's, or as many as the hardware has.",
        ge=1,
        le=4096,
    ),
    typer.Option("--devices-per-host", help="Devices that share a host.", show_default="as many as the hardware has"),
]
ExchangeDevices = Annotated[
    str | None,
    in_form(
        "All-to-alls of more devices",
        "Numbers of devices, such as 64, 128, whose all-to-alls are measured by themselves, so that the placer serves as "
        "many devices where the testbed can (simulated, emulated, cluster). Empty: only up to the devices above.",
        json_schema_extra={"pattern": r"^( *[1-9]\d{0,3} *(,|$))*$"},
    ),
    typer.Option("--exchange-devices", help="Further numbers of devices to measure all-to-alls of, such as 64,128."),
]
MemoryGb = Annotated[
    float | None,
    in_form("Memory per device, GiB", "Room for tables on each device. Empty: the recipe's.", gt=0, le=100_000),
    typer.Option("--memory-gb", min=0.001, help="Room for tables on each device, GiB.", show_default="the recipe's"),
]
ReserveGb = Annotated[
    float | None,
    in_form(
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
    in_form("Tables per task", "Tables in each placement task. Empty: the recipe's.", ge=1, le=100_000),
    typer.Option("--tables-per-task", help="Tables in each placement task.", show_default="the recipe's"),
]
LearntMode = Annotated[
    Literal["auto", "fixed", "pool"] | None,
    in_form(
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
    in_form(
        "Batch size",
        "Training samples per pass over all devices. Empty: derived from tables and testbed.",
        ge=1,
        le=2**24,
    ),
    typer.Option("--batch-size", help="Training samples per pass over all devices.", show_default="derived"),
]
CurrentPlan = Annotated[
    str | None,
    in_form(
        "Plan in use",
        "Full path of the PLAN.json that this model runs with now: measured beside the new placement. Empty: none.",
    ),
    typer.Option("--current", help="PLAN.json in use for this model: measured beside the new placement."),
]
Iterations = Annotated[
    int | None,
    in_form(
        "Iterations",
        "Rounds of measure, fit, improve. Empty: the recipe's (the paper: 10; fewer from the champion).",
        ge=1,
        le=1000,
    ),
    typer.Option("--iterations", help="Rounds of measure, fit, improve.", show_default="the recipe's"),
]
PlacementsPerIteration = Annotated[
    int | None,
    in_form(
        "Placements per iteration",
        "Placements measured on the testbed in each round. Empty: the recipe's (the paper: 10).",
        ge=1,
        le=10_000,
    ),
]
Full = Annotated[
    bool,
    in_form(
        "From nothing",
        "Train in full. Off: continue from the champion where tables changed, with its cost samples and fewer "
        "measurements.",
    ),
    typer.Option("--full", help="Train from nothing instead of continuing from the champion."),
]
NoPromote = Annotated[
    bool,
    in_form(
        "Try out",
        "Register the version without changing which one is in use: neither champion nor challenger, and no later "
        "training continues from it. Off: its evaluation decides.",
    ),
    typer.Option("--no-promote", help="Register the version, but leave the champion as it is: a try-out."),
]
NewReference = Annotated[
    bool,
    in_form(
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
    in_form(
        "Drift of the pooling factor",
        "Relative change of a table's lookups per sample from which the table counts as drifted; 0.1 is 10 %.",
        ge=0,
        le=10,
    ),
]
ReuseDrift = Annotated[
    float,
    in_form(
        "Drift of reuse",
        "Share of a table's distinct rows that are looked up more or less often (another of the 17 bins) from "
        "which the table counts as drifted.",
        ge=0,
        le=1,
    ),
]
ChangedShare = Annotated[
    float,
    in_form(
        "Share of tables",
        "Share of the tables that must be added, removed, resized or drifted before a retraining starts; 0 for "
        "any of them.",
        ge=0,
        le=1,
    ),
]
Emit = Annotated[
    bool, in_form("Start retraining", "Emit the event that starts it. Off: only look and show what changed.")
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
    in_form(
        "Sample batches",
        "For a TorchRec model: a function without arguments that returns batches with KeyedJaggedTensors, as "
        "file.py:function or module:function. Empty: lookups by a Zipf law.",
        examples=["/models/data.py:make_batches"],
    ),
    typer.Option("--batches", help="For a TorchRec model: data.py:make_batches, which returns sample batches."),
]
NumBatches = Annotated[
    int | None,
    in_form(
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
    in_form("Name", "Name of the data set for people. Empty: the source's name."),
    typer.Option("--name", help="Name of the data set for people."),
]
