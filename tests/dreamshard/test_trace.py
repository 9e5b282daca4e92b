"""Time lines by hand, and the file that trace viewers open."""

import json

import torch

from dreamshard.costs import DeviceCosts
from dreamshard.trace import Span, spans, trace_events, write_trace

# device 0 pools 1 ms longer than device 1, and updates 2 ms shorter
COSTS = DeviceCosts.from_phases(torch.tensor([[3.0, 1.0, 1.0, 2.0], [2.0, 1.0, 1.0, 4.0]]))


def span(device, name, start_ms, duration_ms):
    return Span(device=device, name=name, start_ms=float(start_ms), duration_ms=float(duration_ms))


def test_devices_wait_for_the_slowest_before_they_exchange_and_at_the_end():
    assert spans(COSTS) == [
        span(0, "forward_compute", 0, 3),
        span(0, "forward_comm", 3, 1),
        span(0, "backward_comm", 4, 1),
        span(0, "backward_compute", 5, 2),
        span(0, "waiting", 7, 2),
        span(1, "forward_compute", 0, 2),
        span(1, "waiting", 2, 1),
        span(1, "forward_comm", 3, 1),
        span(1, "backward_comm", 4, 1),
        span(1, "backward_compute", 5, 4),
    ]


def test_gradients_are_exchanged_when_the_slowest_has_all_vectors():
    costs = DeviceCosts.from_phases(torch.tensor([[2.0, 1.0, 1.0, 2.0], [2.0, 3.0, 1.0, 2.0]]))
    assert [found for found in spans(costs) if found.device == 0] == [
        span(0, "forward_compute", 0, 2),
        span(0, "forward_comm", 2, 1),
        span(0, "waiting", 3, 2),
        span(0, "backward_comm", 5, 1),
        span(0, "backward_compute", 6, 2),
    ]


def test_bars_of_a_device_neither_overlap_nor_leave_gaps():
    generator = torch.Generator().manual_seed(0)
    found = spans(DeviceCosts.from_phases(torch.rand(7, 4, generator=generator)))
    ends = set()
    for device in range(7):
        row = [each for each in found if each.device == device]
        now = 0.0
        for each in row:
            assert abs(each.start_ms - now) < 1e-9
            now = each.start_ms + each.duration_ms
        ends.add(round(now, 9))
    assert len(ends) == 1


def test_the_file_is_complete_events_in_microseconds_with_a_process_per_placement_and_a_thread_per_device(tmp_path):
    path = tmp_path / "below" / "trace.json"
    write_trace(path, {"ours": (COSTS, {}), "theirs": (COSTS, {})})
    content = json.loads(path.read_text())
    assert content["displayTimeUnit"] == "ms"
    assert content["traceEvents"] == trace_events({"ours": (COSTS, {}), "theirs": (COSTS, {})})
    complete = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert len(complete) == 2 * len(spans(COSTS))
    assert all({"name", "ts", "dur", "pid", "tid"} <= set(event) for event in complete)
    assert {(event["pid"], event["tid"]) for event in complete} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert complete[0] == {
        "ph": "X",
        "name": "forward compute",
        "cat": "phase",
        "pid": 0,
        "tid": 0,
        "ts": 0.0,
        "dur": 3000.0,
    }
    named = {event["args"]["name"] for event in content["traceEvents"] if event["ph"] == "M"}
    assert named == {"ours", "theirs", "device 0", "device 1"}
    assert [file.name for file in path.parent.iterdir()] == ["trace.json"]
