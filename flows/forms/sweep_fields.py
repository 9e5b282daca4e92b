"""The fields of a sweep's options, as `fields` has those of the chain."""

from typing import Annotated, Literal

import typer
from pydantic import Field

from flows.forms.field_parts import SchemaEntry


def _sweeps() -> list[str]:
    from dreamshard.sweep import SWEEPS

    return sorted(SWEEPS)


SweepName = Annotated[
    str,
    Field(title="Sweep", description="Which placers, sizes, dims and seeds, by name."),
    SchemaEntry("enum", _sweeps),
    typer.Option("--recipe", help="Which placers, sizes, dims and seeds, by name: paper_table."),
]
Short = Annotated[
    bool,
    Field(
        title="Short",
        description="Every experiment, few cells: less than ten minutes on two idle cores. The whole sweep takes hours.",
    ),
    typer.Option(
        "--short",
        help="Every experiment, few cells: less than ten minutes on two idle cores. The whole sweep takes hours.",
    ),
]
Workers = Annotated[
    int | None,
    Field(
        ge=1,
        title="Workers",
        description="Cells run at once, each in a process with one thread. All cores if empty. Figures do not depend on it.",
    ),
    typer.Option("--workers", min=1, help="Cells run at once, each with one thread; all cores by default."),
]
NoRealRanks = Annotated[
    bool,
    Field(
        title="No real ranks",
        description="Leave out the cells that measure on real CPU ranks, which need fbgemm and an otherwise idle machine.",
    ),
    typer.Option("--no-real-ranks", help="Leave out the cells that measure on real CPU ranks."),
]
Experiments = Annotated[
    str | None,
    Field(
        title="Experiments",
        description="The experiments to run, with commas between: sizes, transfer, measurements, ablations, workloads, "
        "real_ranks. All if empty. Those of other runs stay on the page.",
        examples=["sizes,transfer"],
    ),
    typer.Option(
        "--experiments",
        help="Experiments to run, with commas between: sizes, transfer, measurements, ablations, workloads, real_ranks; "
        "all by default.",
    ),
]
SweptTables = Annotated[
    Literal["validation", "test"],
    Field(
        title="Tables",
        description="Tables to place, which no training sees. Make choices on validation; look at test once, at the end.",
    ),
    typer.Option("--tables", help="validation to make choices on, or test, to be looked at once, at the end."),
]
