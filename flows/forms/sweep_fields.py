"""The fields of a sweep's options, as `fields` has those of the chain."""

from typing import Annotated, Literal

import typer
from pydantic import Field

from flows.forms.fields import SchemaEntry


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
    Field(title="Short", description="Two sizes and one public model, in minutes; the whole sweep takes hours."),
    typer.Option("--short", help="Two sizes and one public model, in minutes; the whole sweep takes hours."),
]
SweptTables = Annotated[
    Literal["validation", "test"],
    Field(
        title="Tables",
        description="Tables to place, which no training sees. Make choices on validation; look at test once, at the end.",
    ),
    typer.Option("--tables", help="validation to make choices on, or test, to be looked at once, at the end."),
]
