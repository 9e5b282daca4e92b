"""`--trace FILE`: the placements that a stage measured, as timelines for trace viewers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamshard.costs import DeviceCosts
from dreamshard.shards import Shards
from dreamshard.trace import TablesOf, write_trace
from flows.reports.timeline import costs_of
from storage.run_records import checkpoints, report_store
from storage.store import Store


def write(store: Store, outcome: Mapping[str, Any], path: Path) -> int:
    """Write the placements of an evaluation, or of a profile's iteration; returns how many.

    Args:
        outcome: outcome of the stage's flow.

    Raises:
        ValueError: no placement fits its devices.
    """
    is_evaluation = "evaluation" in outcome
    placements = _evaluated(store, outcome["evaluation"]) if is_evaluation else _profiled(store, outcome)
    if not placements:
        raise ValueError("no placement that was measured fits its devices, so there is no timeline to write")
    write_trace(path, placements)
    return len(placements)


def _evaluated(store: Store, key: str) -> dict[str, tuple[DeviceCosts, TablesOf]]:
    rows = [row for row in report_store.load(store.evaluations, key).rows if row.fits]
    return {
        f"{row.task}, {row.placer}: {row.overall_ms:.3f} ms": (
            costs_of(row.devices),
            _tables_of(row.tables, row.device) if row.tables else {},
        )
        for row in rows
    }


def _profiled(store: Store, outcome: Mapping[str, Any]) -> dict[str, tuple[DeviceCosts, TablesOf]]:
    drawn = checkpoints.proposals(store, outcome["training"], outcome["iteration"])
    proposals = {(name, tuple(device)) for name, device in drawn}
    samples = store.lake.read_cost_samples(run_key=outcome["training"])
    found: dict[str, tuple[DeviceCosts, TablesOf]] = {}
    for sample in samples:
        if (sample.task.name, tuple(sample.placement.device.tolist())) in proposals and sample.infeasible is None:
            shards = Shards.of(sample.task, sample.placement)
            name = f"{len(found)}: {sample.task.name}, {sample.overall_ms:.3f} ms on {sample.hardware}"
            found[name] = sample.costs, _tables_of(shards.tables.names, shards.device.tolist())
    return found


def _tables_of(names: Sequence[str], device: Sequence[int]) -> TablesOf:
    held: dict[int, list[str]] = {}
    for name, d in zip(names, device, strict=True):
        held.setdefault(d, []).append(name)
    return held
