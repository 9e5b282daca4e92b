"""Everything that was measured and registered, as pandas data frames for notebooks and scripts.

    from storage import notebook

    notebook.view("versions")
    notebook.view("table_costs", home="~/models/.dreamshard")
    notebook.query("select device, avg(device_ms) as ms from device_costs group by device", home="s3://team/dreamshard")

`home` is a folder, or the address of a shared store; by default the environment's (`DREAMSHARD_HOME`, `DREAMSHARD_STORE`),
otherwise `./.dreamshard`. docs/catalog.md describes the views and their columns.
"""

import os
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]

from storage.lake import catalog
from storage.settings import Settings


def query(sql: str, home: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """The answer of a query over the views.

    Raises:
        ValueError: there is no such home, or DuckDB cannot run the query.
    """
    settings = Settings.from_environment(os.environ if home is None else _environment_of(str(home)))
    if isinstance(settings.lake_root, Path) and not settings.lake_root.is_dir():
        raise ValueError(f"there is no lake in {settings.store_root}; pass the `home` that `dreamshard run` wrote to")
    with catalog.answering(settings, sql) as answer:
        return answer.df()


def view(name: str, home: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """A whole view; raises like `query`."""
    return query(f'select * from "{name}"', home)


def _environment_of(home: str) -> dict[str, str]:
    return {"DREAMSHARD_STORE": home} if "://" in home else {"DREAMSHARD_HOME": home}
