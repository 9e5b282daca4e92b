"""A measured placement as a timeline, and as a file for trace viewers (chrome://tracing, Perfetto).

All devices start a step together and synchronise before both all-to-alls, so each all-to-all begins when the slowest
device is ready. The others' waiting has its own bars, which show what a better balance would save.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamshard.costs import PHASES, DeviceCosts
from dreamshard.files import atomic

WAITING = "waiting"
TablesOf = Mapping[int, Sequence[str]]
"""Names of the tables or shards of each device; empty if they are not known."""
_SYNCHRONISED = ("forward_comm", "backward_comm")  # phases that begin on all devices at once


@dataclass(frozen=True, kw_only=True)
class Span:
    """One bar of the timeline.

    Attributes:
        name: one of `PHASES`, or `waiting`.
        start_ms: since the start of the step.
        duration_ms: above 0.
    """

    device: int
    name: str
    start_ms: float
    duration_ms: float


def spans(costs: DeviceCosts) -> list[Span]:
    """The bars of one placement's `[D]` costs, by device and time.

    They end after `overall_ms` if different devices are slowest in different phases: `overall_ms` excludes waiting.
    """
    phases_ms = costs.phases_ms().double().tolist()  # D rows of 4
    ends = [0.0] * len(phases_ms)  # of the last bar of each device
    bars: list[Span] = []

    def wait_for_all() -> None:
        latest = max(ends, default=0.0)
        for d, end in enumerate(ends):
            if latest > end:
                bars.append(Span(device=d, name=WAITING, start_ms=end, duration_ms=latest - end))
                ends[d] = latest

    for p, phase in enumerate(PHASES):
        if phase in _SYNCHRONISED:
            wait_for_all()
        for d, row in enumerate(phases_ms):
            if row[p] > 0:
                bars.append(Span(device=d, name=phase, start_ms=ends[d], duration_ms=row[p]))
                ends[d] += row[p]
    wait_for_all()
    return sorted(bars, key=lambda span: (span.device, span.start_ms))


def trace_events(placements: Mapping[str, tuple[DeviceCosts, TablesOf]]) -> list[dict[str, Any]]:
    """Complete events (`ph` X, times in microseconds): a process per placement, a thread per device.

    A bar of a phase names the tables of its device (`args`), which viewers show when it is chosen.

    Args:
        placements: `[D]` costs and the tables of each device, by the name in the viewer.
    """
    events: list[dict[str, Any]] = []
    for pid, (name, (costs, tables)) in enumerate(placements.items()):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
        for device in range(costs.forward_compute_ms.shape[-1]):
            thread = {"ph": "M", "name": "thread_name", "pid": pid, "tid": device}
            events.append(thread | {"args": {"name": f"device {device}"}})
        for span in spans(costs):
            times = {"ts": round(1e3 * span.start_ms, 3), "dur": round(1e3 * span.duration_ms, 3)}
            label = span.name.replace("_", " ")
            event = {"ph": "X", "name": label, "cat": "phase", "pid": pid, "tid": span.device, **times}
            if tables and span.name != WAITING:
                event["args"] = {"tables": tables.get(span.device, [])}
            events.append(event)
    return events


def write_trace(path: Path, placements: Mapping[str, tuple[DeviceCosts, TablesOf]]) -> None:
    """Write a file for trace viewers.

    Raises:
        ValueError: `path` cannot be written.
    """
    content = {"traceEvents": trace_events(placements), "displayTimeUnit": "ms"}
    atomic.write_output(path, json.dumps(content))
