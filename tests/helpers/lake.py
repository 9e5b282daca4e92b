"""Writes to the lake that only tests make."""

from collections.abc import Sequence
from urllib.parse import quote

import pyarrow as pa

from dreamshard.costs import CostSample
from storage.lake import Lake
from storage.lake import rows as records
from storage.lake.sample_buffer import append_measurements
from storage.lake.schemas import datasets


def append_samples(
    lake: Lake, samples: Sequence[CostSample], run_key: str, iteration: int, dataset_version: str
) -> list[str]:
    """Write samples to the lake at once, in one file for each testbed; returns their ids."""
    origin = {"run_key": run_key, "iteration": iteration, "dataset_version": dataset_version}
    rows = [records.sample_to_rows(sample, **origin) for sample in samples]
    for testbed in {sample.testbed for sample in samples}:
        own = [row for devices in rows for row in devices if row["testbed"] == testbed]
        measurements = pa.Table.from_pylist(own, schema=datasets()["cost_samples"])
        append_measurements(lake, f"{quote(run_key, safe='')}.{iteration:04}", measurements)
    return [devices[0]["sample_id"] for devices in rows]
