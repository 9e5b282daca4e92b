"""A measured placement as a time line, and as a file for trace viewers (chrome://tracing, Perfetto).

The four phases of a step on every device. Devices start together and meet again in both all-to-alls: that of the pooled
vectors begins when the slowest has pooled its own, that of their gradients when the slowest has all vectors. What the
others wait is drawn as waiting, so the picture shows what a better balance would save.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamshard.costs import PHASES, CostSample, DeviceCosts
from dreamshard.files import atomic

WAITING = "waiting"
_MEETINGS = ("forward_comm", "backward_comm")  # phases that no device begins before all have ended the one before


@dataclass(frozen=True, kw_only=True)
class Span:
    """One bar of the time line.

    Attributes:
        device: whose row.
        name: one of `PHASES`, or `waiting`.
        start_ms: since the step began.
        duration_ms: above 0.
    """

    device: int
    name: str
    start_ms: float
    duration_ms: float


def spans(costs: DeviceCosts) -> list[Span]:
    """The bars of one placement's `[D]` costs, device by device, in order of time.

    The rows are longer than `overall_ms` where not the same device is the slowest between all meetings: the sum of one
    device's phases leaves the waiting out.
    """
    phases_ms = costs.phases_ms().double().tolist()  # D rows of 4
    clock = [0.0] * len(phases_ms)
    found: list[Span] = []
    for p, phase in enumerate(PHASES):
        meeting = max(clock) if phase in _MEETINGS else None
        for d, row in enumerate(phases_ms):
            if meeting is not None and meeting > clock[d]:
                found.append(Span(device=d, name=WAITING, start_ms=clock[d], duration_ms=meeting - clock[d]))
                clock[d] = meeting
            if row[p] > 0:
                found.append(Span(device=d, name=phase, start_ms=clock[d], duration_ms=row[p]))
                clock[d] += row[p]
    end = max(clock, default=0.0)
    for d, now in enumerate(clock):
        if end > now:
            found.append(Span(device=d, name=WAITING, start_ms=now, duration_ms=end - now))
    return sorted(found, key=lambda span: (span.device, span.start_ms))


def trace_events(samples: dict[str, DeviceCosts]) -> list[dict[str, Any]]:
    """Complete events (`ph` X, times in microseconds): a process per placement, a thread per device.

    Args:
        samples: costs of `[D]` by what the viewer shall call the placement.
    """
    events: list[dict[str, Any]] = []
    for pid, (name, costs) in enumerate(samples.items()):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
        for device in range(costs.forward_compute_ms.shape[-1]):
            thread = {"ph": "M", "name": "thread_name", "pid": pid, "tid": device}
            events.append(thread | {"args": {"name": f"device {device}"}})
        for span in spans(costs):
            times = {"ts": round(1e3 * span.start_ms, 3), "dur": round(1e3 * span.duration_ms, 3)}
            label = span.name.replace("_", " ")
            events.append({"ph": "X", "name": label, "cat": "phase", "pid": pid, "tid": span.device, **times})
    return events


def write_trace(path: Path, samples: dict[str, DeviceCosts]) -> None:
    """Write the events as a file that trace viewers open, all of it or nothing."""
    content = {"traceEvents": trace_events(samples), "displayTimeUnit": "ms"}
    atomic.write(path, json.dumps(content))


def traced(samples: list[CostSample]) -> dict[str, DeviceCosts]:
    """The samples that fit their devices, by task and position."""
    fitting = [sample for sample in samples if math.isfinite(sample.overall_ms)]
    return {f"{i}: {s.task.name}, {s.overall_ms:.3f} ms on {s.hardware}": s.costs for i, s in enumerate(fitting)}
