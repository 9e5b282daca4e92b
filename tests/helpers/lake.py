"""Writes to the lake that only tests make."""

from collections.abc import Sequence

from dreamshard.costs import CostSample
from storage.lake import Lake
from storage.lake import rows as records
from storage.lake.sample_buffer import append_measurements


def append_samples(
    lake: Lake, samples: Sequence[CostSample], run_key: str, iteration: int, dataset_version: str
) -> list[str]:
    """Write samples to the lake at once; returns their ids."""
    origin = {"run_key": run_key, "iteration": iteration, "dataset_version": dataset_version}
    rows = [records.sample_to_rows(sample, **origin) for sample in samples]
    append_measurements(lake, [row for devices in rows for row in devices])
    return [devices[0]["sample_id"] for devices in rows]
