"""Writes and questions to the lake that only tests have."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dreamshard.costs import CostSample
from storage.lake import Lake, catalog, rows as records
from storage.lake.parquet_files import datasets
from storage.settings import Settings


def append_samples(
    lake: Lake, samples: Sequence[CostSample], run_key: str, iteration: int, dataset_version: str
) -> list[str]:
    """Write samples to the lake at once, in one file for each testbed; returns their ids."""
    origin = {"run_key": run_key, "iteration": iteration, "dataset_version": dataset_version}
    rows = [records.sample_to_rows(sample, **origin) for sample in samples]
    for testbed in {sample.testbed for sample in samples}:
        of_testbed = [row for devices in rows for row in devices if row["testbed"] == testbed]
        lake.append_measurements(pa.Table.from_pylist(of_testbed, schema=datasets()["cost_samples"]))
    return [devices[0]["sample_id"] for devices in rows]


def query(settings: Settings, sql: str) -> list[dict[str, Any]]:
    """A dictionary per row of the answer."""
    with catalog.answering(settings, sql) as answer:
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.fetchall()]
