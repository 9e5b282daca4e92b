"""Options of `dreamshard place`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from dreamshard.files.foreign import MOST_DEVICES, MOST_MEMORY_GB

TablesArgument = Annotated[
    Path,
    typer.Argument(
        help="CSV or Parquet (name, rows, dim, pooling_factor, bin_0..16), TorchRec-style JSON, model.py:make_model, "
        "or a bundled list by name, e.g. mlperf-dlrm-dcnv2."
    ),
]
DevicesOption = Annotated[int, typer.Option("--devices", min=1, max=MOST_DEVICES, help="Number of devices.")]
MemoryOption = Annotated[
    float | None,
    typer.Option(
        "--memory-gb",
        min=0.001,
        max=MOST_MEMORY_GB,
        help="Room for tables on each device, GiB; seven eighths of --hardware's if omitted.",
    ),
]
PlacerOption = Annotated[
    str | None,
    typer.Option(
        "--placer",
        help="champion, challenger, previous, a version (3, models:/NAME/3), prior, "
        "cost_greedy, dreamshard_policy, a rule of thumb, or a rival (docs/own-tables.md lists them).",
        show_default="the champion, or the best for --hardware",
    ),
]
BudgetOption = Annotated[
    float | None,
    typer.Option(
        "--budget-ms",
        min=0,
        help="Work of the search: as much as an idle core does in this time, on any machine.",
        show_default="by the number of tables and devices",
    ),
]
ConstraintsOption = Annotated[
    Path | None,
    typer.Option(
        "--constraints", help="YAML or JSON file: what the plan must respect (docs/constraints-and-moving.md)."
    ),
]
ShardingOption = Annotated[
    str | None,
    typer.Option(
        "--sharding",
        help="Ways to shard: auto (every way), columns, whole, or a list such as table_wise,row_wise.",
        show_default="auto; columns for rules of thumb and rivals",
    ),
]
ReserveOption = Annotated[
    float | None,
    typer.Option(
        "--reserve-gb", min=0, max=MOST_MEMORY_GB, help="Of each device's room, kept free for dense parameters, GiB."
    ),
]
CacheOption = Annotated[
    bool, typer.Option("--cache", help="Tables may be in host memory with a cache on the device, if room is short.")
]
FormatOption = Annotated[Literal["json", "csv", "torchrec"], typer.Option("--format", help="Format of the plan.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="File for the plan; stdout if omitted.")]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", help="File for a page that shows the plan: devices, tables and what moves.")
]
PrecisionOption = Annotated[
    Literal["fp32", "fp16", "bf16", "int8"] | None,
    typer.Option("--precision", help="Type of the weights.", show_default="the model's, or fp32"),
]
OptimizerOption = Annotated[
    Literal[
        "sgd", "rowwise_adagrad", "adagrad", "adam", "lamb", "partial_rowwise_adam", "partial_rowwise_lamb", "lars_sgd"
    ]
    | None,
    typer.Option("--optimizer", help="Optimizer, whose state takes room.", show_default="the model's, or sgd"),
]
PerHostOption = Annotated[
    int | None,
    typer.Option("--devices-per-host", min=1, max=MOST_DEVICES, help="Devices on one host; the hardware's if omitted."),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit with 3 where costs are of another setting than the plan's.")
]


def check_tables(tables: Path) -> None:
    """Check, before imports that take seconds, that a list which is named as a file is there.

    Raises:
        ValueError: it is not.
    """
    if tables.suffix in (".csv", ".parquet", ".json") and not tables.is_file():
        raise ValueError(f"there is no file {tables}, so there are no tables to read; check the path")


def check_room(memory_gb: float | None, hardware: str | None) -> None:
    """Check, before anything is read, that the room for tables is known.

    Raises:
        BadParameter: neither option is given.
    """
    if memory_gb is None and not hardware:
        raise typer.BadParameter("give the room for tables on each device, or --hardware", param_hint="--memory-gb")
