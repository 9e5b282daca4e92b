"""One rank's trace by PyTorch's profiler, as the embedding part of each profiled step.

What an event counts as is decided by the operator or annotation that launched it, by the names that FBGEMM and TorchRec have
used since 2022. A GPU trace has kernels, joined with their launch by a correlation number. A CPU trace has operators, and the
collectives that gloo ran, in the order in which they were started.
"""

import gzip
import json
import re
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dreamshard.costs import PHASES
from dreamshard.files.foreign import InputError, reading

_PATTERNS = {
    "forward_compute": r"(split|dense|ssd)\w*embedding\w*_(lookup|forward)|\b(lxu|lru|lfu)_cache",
    "forward_comm": r"(?i:all2all|alltoall|reduce_?scatter)\w*_fwd",
    "backward_comm": r"(?i:all2all|alltoall|reduce_?scatter)\w*_bwd",
    "backward_compute": r"LookupFunction\w*_Op|embedding_backward_codegen",
}
_NAMED = re.compile("|".join(f"(?P<{phase}>{_PATTERNS[phase]})" for phase in PHASES))
_COMPUTE = PHASES.index("forward_compute"), PHASES.index("backward_compute")
_COMM = PHASES.index("forward_comm"), PHASES.index("backward_comm")
_STEP, _STARTED, _RAN, _COLLECTIVE = "ProfilerStep", "c10d::", "gloo:", re.compile("nccl", re.IGNORECASE)
_ON_GPU = {"kernel", "memcpy", "memset", "gpu_memcpy", "gpu_memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "runtime"}
_ON_CPU = {"cpu_op", "operator", "user_annotation"}


class Event(NamedTuple):
    """What is kept of an event of the trace; times in microseconds."""

    kind: str
    name: str
    thread: Any
    start: float
    end: float
    correlation: Any


class Collective(NamedTuple):
    """A collective of pooled vectors or their gradients on this rank, from its own arrival; times in microseconds."""

    phase: int
    start: float
    end: float


@dataclass(frozen=True)
class ProfiledStep:
    """The embedding part of a training step on one rank.

    Attributes:
        compute_ms: by phase, 0 for communication: kernels of fused lookups; of their gradients, sort and optimizer.
        kernels_ms: of these by name; operators on CPUs.
        collectives: in the order of their starts.
    """

    compute_ms: list[float]
    kernels_ms: dict[str, float]
    collectives: list[Collective]


@dataclass(frozen=True)
class RankTrace:
    """The profiled steps of a rank.

    Attributes:
        source: the file.
        rank: None if the trace does not say.
        num_ranks: of the job, likewise.
        hardware: name of the GPU; empty on CPUs.
    """

    source: str
    rank: int | None
    num_ranks: int | None
    hardware: str
    steps: list[ProfiledStep]


def read_trace(path: Path) -> RankTrace:
    """Read a Chrome trace of `torch.profiler`, `.json` or `.json.gz`, of training steps.

    Raises:
        ValueError: the file is damaged, or has no profiled step, no fused lookup, or no backward pass.
    """
    with reading(path, "is no complete trace of PyTorch's profiler", "profile again, and let the profiler end"):
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        trace = json.loads(content, object_hook=_kept)
        events = [event for event in trace["traceEvents"] if isinstance(event, Event)]
        properties, job = trace.get("deviceProperties") or [{}], trace.get("distributedInfo") or {}
    steps = sorted((event.start, event.end) for event in events if event.kind == "step")
    if not steps:
        raise InputError(f"{path} has no ProfilerStep; call the profiler's `step()` after each training step")
    found = _profiled(events, steps)
    forward, backward = (any(step.compute_ms[phase] for step in found) for phase in _COMPUTE)
    if forward != backward or not (forward or any(step.collectives for step in found)):
        has = (
            "lookups but no backward pass" if forward else "no fused lookups of FBGEMM and no exchange of their vectors"
        )
        raise InputError(f"{path} has {has}; profile training steps of a model that TorchRec sharded")
    return RankTrace(str(path), job.get("rank"), job.get("world_size"), properties[0].get("name", ""), found)


def _kept(fields: dict[str, Any]) -> Any:
    """What is needed of a JSON object; most events are dropped as soon as they are read, which keeps memory small."""
    if "ph" not in fields:  # arguments of an event, or the trace's own
        is_kept = "traceEvents" in fields or "world_size" in fields or "totalGlobalMem" in fields
        return fields if is_kept else fields.get("correlation")
    category, name = str(fields.get("cat")).lower(), str(fields.get("name"))
    if fields["ph"] != "X":
        return None
    if category in _ON_GPU:
        kind = "gpu"
    elif category in _LAUNCHES:
        kind = "launch"
    elif category not in _ON_CPU:
        return None
    elif name.startswith(_STEP):
        kind = "step"
    elif name.startswith((_STARTED, _RAN)):
        kind = "started" if name.startswith(_STARTED) else "ran"
    elif (match := _NAMED.search(name)) is not None:
        kind = str(match.lastgroup)
    else:
        return None
    start = float(fields["ts"])
    return Event(kind, name, fields.get("tid"), start, start + float(fields.get("dur", 0)), fields.get("args"))


def _profiled(events: Iterable[Event], steps: list[tuple[float, float]]) -> list[ProfiledStep]:
    """The events of each step, by when they were launched."""
    by_kind = defaultdict[str, list[Event]](list)
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        by_kind[event.kind].append(event)
    regions = _Regions.of([event for phase in PHASES for event in by_kind[phase]])
    found = [ProfiledStep([0.0] * len(PHASES), defaultdict(float), []) for _ in steps]
    on_gpu = by_kind["gpu"]
    launched = {event.correlation: event for event in by_kind["launch"]}
    pairs = [(event, launched.get(event.correlation)) for event in on_gpu]
    if not on_gpu:
        pairs = _paired(by_kind["started"], by_kind["ran"])
        pairs += [(event, event) for event in regions.all() if PHASES.index(event.kind) not in _COMM]
    for event, launch in pairs:
        match = _NAMED.search(event.name)
        name = regions.around(launch) if launch else match and match.lastgroup
        number = bisect_right(steps, ((launch or event).start, float("inf"))) - 1
        if name is None or number < 0 or (launch or event).start > steps[number][1]:
            continue
        phase = PHASES.index(name)
        if phase not in _COMM:
            found[number].compute_ms[phase] += (event.end - event.start) / 1e3
            found[number].kernels_ms[event.name] += (event.end - event.start) / 1e3
        elif event.kind == "ran" or _COLLECTIVE.search(event.name):
            found[number].collectives.append(Collective(phase, event.start, event.end))
    return found


def _paired(started: list[Event], ran: list[Event]) -> list[tuple[Event, Event | None]]:
    """Gloo's collectives with the operators that started them, in the order of its queue; an operator may be missing."""
    waiting, pairs = deque(started), list[tuple[Event, Event | None]]()
    for each in ran:
        is_own = waiting and waiting[0].start <= each.start
        pairs.append((each, waiting.popleft() if is_own else None))
    return pairs


@dataclass(frozen=True)
class _Regions:
    """Operators and annotations of the phases, the outermost ones of each thread."""

    by_thread: Mapping[Any, list[Event]]

    @classmethod
    def of(cls, events: list[Event]) -> "_Regions":
        found = defaultdict[Any, list[Event]](list)
        for event in sorted(events, key=lambda event: (event.start, -event.end)):
            own = found[event.thread]
            if not own or event.start >= own[-1].end:
                own.append(event)
        return cls(found)

    def all(self) -> list[Event]:
        """Of all threads."""
        return [event for own in self.by_thread.values() for event in own]

    def around(self, launch: Event) -> str | None:
        """The phase in which something was launched; None for none."""
        own = self.by_thread.get(launch.thread, [])
        number = bisect_right(own, launch.start, key=lambda event: event.start) - 1
        return own[number].kind if number >= 0 and launch.start <= own[number].end else None
