"""Everything that was measured and registered as pandas data frames, for notebooks and scripts.

    from storage import load

    load.versions()
    load.table_costs(home="~/models/.dreamshard")
    load.query("select device, avg(device_ms) as ms from device_costs group by device", home="s3://team/dreamshard")

`home` is a folder, or the address of a shared store; by default that of the environment (`DREAMSHARD_HOME`,
`DREAMSHARD_STORE`), else `./.dreamshard`. The functions read and change nothing, except that `table_costs` completes the
estimates of champions that an earlier release registered. Each is a view of `storage.lake.catalog`; `columns` lists its
columns, and docs/catalog.md says what they mean.
"""

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from storage.lake import catalog, confined
from storage.lake.query_watch import GiveUp
from storage.run_records import table_estimates, version_table
from storage.settings import Settings
from storage.store import Store

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]

Home = str | os.PathLike[str] | None

_ELSEWHERE = ("DREAMSHARD_STORE", "DREAMSHARD_ARTIFACTS", "MLFLOW_TRACKING_URI")

_OF_VERSIONS = re.compile(r"\b(versions|table_costs|evaluations|evaluated_devices|placements)\b", re.IGNORECASE)
_OF_ESTIMATES = re.compile(r"\btable_costs\b", re.IGNORECASE)


@contextmanager
def answering(
    settings: Settings,
    sql: str,
    memory_gb: float = confined.MEMORY_GB,
    seconds: float = math.inf,
    give_up: GiveUp | None = None,
) -> Iterator[catalog.Answer]:
    """Yield what one query answers, with the registry and the estimates of tables as they are now where it needs them.

    Args:
        memory_gb: GiB that it may use.
        seconds: that it may take, until the block ends.
        give_up: ends the process, if DuckDB does not when it is to; None to wait for as long as it takes.

    Raises:
        ValueError: DuckDB cannot run it, it may do more than read, or it exceeds a bound.
    """
    if _OF_ESTIMATES.search(sql):
        table_estimates.write_missing(Store(settings))
    versions = version_table.current_versions(settings) if _OF_VERSIONS.search(sql) else None
    with catalog.answering(settings, sql, versions, memory_gb, seconds, give_up) as answer:
        yield answer


def query(sql: str, home: Home = None, memory_gb: float = confined.MEMORY_GB) -> "DataFrame":
    """The answer of one query over the views, which reads nothing but the lake.

    Args:
        memory_gb: GiB that the query may use, without the data frame.

    Raises:
        ValueError: there is no such home, or DuckDB cannot run the query, or it may do more than read.
    """
    with answering(_settings(home), sql, memory_gb) as answer:
        return answer.rows.df()


def view(name: str, home: Home = None) -> "DataFrame":
    """A whole view.

    Raises:
        ValueError: there is no such view or home.
    """
    if name not in catalog.VIEWS:
        raise ValueError(
            f"there is no view {name!r}, so there is nothing to load; use one of {', '.join(catalog.VIEWS)}"
        )
    return query(f'select * from "{name}"', home)


def columns(name: str, home: Home = None) -> "DataFrame":
    """The columns of a view: `column_name`, `column_type`."""
    return query(f"describe {name}", home)


def versions(home: Home = None) -> "DataFrame":
    """One row per registered version.

    `version` (number within its `algorithm`), `name`, `aliases`, `champion_of`, `created_at`, `source`, `dataset_version`,
    `tables` (their number), `table_diff`, `mode`, `hardware`, `devices`, `memory_gb`, `iterations`, `warm_from`,
    `reference_cost_ms`, `eval_overall_ms`, `prediction_error`, `gain_over_best_baseline`, `reason`, `prefect_run`,
    `mlflow_run`, ...
    """
    return view("versions", home)


def tables(home: Home = None) -> "DataFrame":
    """One row per table and dataset version: `name`, `rows`, `dim`, `pooling_factor`, `bin_0` to `bin_16`, `source`, ..."""
    return view("tables", home)


def table_costs(home: Home = None) -> "DataFrame":
    """One row per table and hardware: what the table costs alone on a device.

    `table_name`, `hardware`, `compute_ms` (`forward_compute_ms` + `backward_compute_ms`), `origin` (measured, or estimated
    by the cost network of `model_version`, whose mean relative `error` on held-out placements is beside it), `rows`,
    `dim`, `pooling_factor`, `is_current` (whether the dataset ingested last has it), ...
    """
    return view("table_costs", home)


def tasks(home: Home = None) -> "DataFrame":
    """One row per placement task: `split`, `task`, `table_names`, `num_devices`, `memory_bytes`, ..."""
    return view("tasks", home)


def cost_samples(home: Home = None) -> "DataFrame":
    """One row per measured placement: `overall_ms`, `spread_ms`, `iteration`, `testbed`, `hardware`, `placement`, ..."""
    return view("cost_samples", home)


def device_costs(home: Home = None) -> "DataFrame":
    """One row per device of a measured placement: the four phases in `..._ms`, `device_ms`, `memory_bytes`, ..."""
    return view("device_costs", home)


def shard_costs(home: Home = None) -> "DataFrame":
    """One row per shard measured by itself: `forward_ms`, `backward_ms`, `num_tables`, `hardware`, ..."""
    return view("shard_costs", home)


def exchange_samples(home: Home = None) -> "DataFrame":
    """One row per all-to-all measured by itself: `num_devices`, `largest_bytes`, `slowest_forward_ms`, ..."""
    return view("exchange_samples", home)


def placements(home: Home = None) -> "DataFrame":
    """One row per placed table: `origin` (cost_sample or evaluation), `placer`, `task`, `table_name`, `device`, ..."""
    return view("placements", home)


def evaluations(home: Home = None) -> "DataFrame":
    """One row per placer and held-out task: `placer`, `model_version`, `overall_ms`, `predicted_ms`, `legal`, ..."""
    return view("evaluations", home)


def evaluated_devices(home: Home = None) -> "DataFrame":
    """One row per placer, held-out task and device: `device_costs` with `placer`, `model_version` and `task`."""
    return view("evaluated_devices", home)


def _settings(home: Home) -> Settings:
    environment = dict(os.environ)
    if "://" in str(home):
        environment["DREAMSHARD_STORE"] = str(home)
    elif home is not None:  # its own lake and registry, whatever this process works with
        environment = {name: value for name, value in environment.items() if name not in _ELSEWHERE}
        environment["DREAMSHARD_HOME"] = str(home)
    settings = Settings.from_environment(environment)
    root = settings.lake_root
    if isinstance(root, Path) and not root.is_dir():
        raise ValueError(
            f"there is no lake in {settings.store_root}, so there is nothing to load; give `home` the folder or address that "
            "`dreamshard run` wrote to"
        )
    return settings
