"""`dreamshard sql`: questions to the catalog."""

from typing import Annotated

import typer

from flows.cli import terminal
from flows.cli.options import HomeOption, JsonOption, enter


def sql(
    query: Annotated[
        str,
        typer.Argument(help="Over tables, tasks, cost_samples, device_costs, placements, evaluations, shard_costs."),
    ],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask DuckDB over everything in the lake."""
    store = enter(home, existing=True)
    from storage.lake import catalog

    rows = catalog.query(store.settings, query)
    if as_json:
        terminal.print_json(rows)
        return
    terminal.print_table(rows)
