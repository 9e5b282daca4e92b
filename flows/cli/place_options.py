"""Options of `dreamshard place`, and the constraints that they stand for."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.cli import terminal

if TYPE_CHECKING:
    from dreamshard.constraints import Constraints
    from dreamshard.testbeds.accelerators.specs import AcceleratorSpec

TablesArgument = Annotated[
    Path,
    typer.Argument(
        help="CSV or Parquet (name, rows, dim, pooling_factor, bin_0..16), TorchRec-style JSON, model.py:make_model, "
        "or a shipped list, e.g. mlperf-dlrm-dcnv2."
    ),
]
DevicesOption = Annotated[int, typer.Option("--devices", min=1, help="Number of devices.")]
MemoryOption = Annotated[
    float | None,
    typer.Option(
        "--memory-gb", min=0.001, help="Room for tables on each device, GiB; seven eighths of --hardware's if omitted."
    ),
]
PlacerOption = Annotated[
    str | None,
    typer.Option(
        "--placer",
        help="champion, challenger, previous, a version, prior, cost_greedy, a rule of thumb, or a rival.",
        show_default="the champion, or the best for --hardware",
    ),
]
BudgetOption = Annotated[float | None, typer.Option("--budget-ms", min=0, help="Time limit of the search.")]
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
    typer.Option("--reserve-gb", min=0, help="Of each device's room, kept free for dense parameters, GiB."),
]
CacheOption = Annotated[
    bool, typer.Option("--cache", help="Tables may be in host memory with a cache on the device, if room is short.")
]
FormatOption = Annotated[Literal["json", "csv", "torchrec"], typer.Option("--format", help="Format of the plan.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="File for the plan; stdout if omitted.")]
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
    int | None, typer.Option("--devices-per-host", min=1, help="Devices on one host; the hardware's if omitted.")
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit with 3 where costs are of another setting than the plan's.")
]


def memory_bytes_of(memory_gb: float | None, spec: "AcceleratorSpec | None") -> int:
    """Room for tables on each device: as given, else most of what the hardware has; constraints may say otherwise."""
    from dreamshard.formatting import gib
    from dreamshard.testbeds.capacity import TABLES_SHARE

    if memory_gb is not None:
        return round(memory_gb * 2**30)
    if spec is None:
        raise typer.BadParameter("give the room for tables on each device, or --hardware", param_hint="--memory-gb")
    memory_bytes = round(TABLES_SHARE * spec.memory_bytes)
    terminal.note(
        f"{gib(memory_bytes)} for tables on each device, {TABLES_SHARE:.1%} of what {spec.name} has (--memory-gb)"
    )
    return memory_bytes


def constraints_of(
    path: Path | None,
    tables: Sequence[str],
    num_devices: int,
    *,
    sharding: str,
    reserve_gb: float | None,
    cache: bool,
) -> "Constraints":
    """What the plan must respect: the options, and where they say nothing the file.

    Args:
        path: of the file; None without one.
        tables: names that the file may use.
        num_devices: `D`.
        sharding: ways to shard where the file names none.
        reserve_gb: None for the file's, or none.
        cache: True instead of the file's.

    Raises:
        ValueError: the file is wrong, or there is no such way to shard.
    """
    from dataclasses import replace

    from dreamshard.constraints import Constraints
    from dreamshard.constraints_file import parse_sharding, read_constraints

    constraints = Constraints(sharding_types=parse_sharding(sharding))
    if path is not None:
        constraints = read_constraints(path, tables, num_devices, constraints)
    if reserve_gb is not None:
        constraints = replace(constraints, reserve_bytes=round(reserve_gb * 2**30))
    return replace(constraints, caching=True) if cache else constraints
