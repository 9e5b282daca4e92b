"""Traces of a job's ranks by PyTorch's profiler, and the plan that it ran, as a cost sample.

A rank's trace gives the embedding part of each profiled step. What an event counts as is decided by the operator or
annotation that launched it, by the names that FBGEMM and TorchRec have used since 2022. A GPU trace has kernels, joined with
their launch by a correlation number. A CPU trace has operators, and the collectives that gloo ran, in the order in which they
were started.

Waiting is no communication: with the traces of all ranks, a collective takes from the arrival of the last rank. Clocks of
hosts differ, so ranks are aligned by the ends of their collectives. With the traces of some ranks, it takes as long as on the
one of them that waited least, which is an upper bound.
"""

import gzip
import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dreamshard.costs import PHASES, TRACED, CostSample, DeviceCosts
from dreamshard.files.foreign import InputError, reading
from dreamshard.files.text import shown
from dreamshard.placement import Placement
from dreamshard.shards import Shards, violation
from dreamshard.tasks import PlacementTask

_PATTERNS = {
    "forward_compute": r"(split|dense|ssd)\w*embedding\w*_(lookup|forward)|\b(lxu|lru|lfu)_cache",
    "forward_comm": r"(?i:all2all|alltoall|reduce_?scatter)\w*_fwd",
    "backward_comm": r"(?i:all2all|alltoall|reduce_?scatter)\w*_bwd",
    "backward_compute": r"LookupFunction\w*_Op|embedding_backward_codegen",
}
_NAMED = re.compile("|".join(f"(?P<{phase}>{_PATTERNS[phase]})" for phase in PHASES))
_COMPUTE = "forward_compute", "backward_compute"
_STEP, _STARTED, _RAN, _COLLECTIVE = "ProfilerStep", "c10d::", "gloo:", re.compile("nccl", re.IGNORECASE)
_ON_GPU = {"kernel", "memcpy", "memset", "gpu_memcpy", "gpu_memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "runtime"}
_ON_CPU = {"cpu_op", "operator", "user_annotation"}
_RANK = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
_SUFFIXES = (".json", ".json.gz")


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
    forward, backward = (any(step.compute_ms[PHASES.index(phase)] for step in found) for phase in _COMPUTE)
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
    regions = defaultdict[Any, list[Event]](list)  # operators and annotations, the outermost ones of each thread
    named = [event for phase in PHASES for event in by_kind[phase]]
    for event in sorted(named, key=lambda event: (event.start, -event.end)):
        if not regions[event.thread] or event.start >= regions[event.thread][-1].end:
            regions[event.thread].append(event)
    found = [ProfiledStep([0.0] * len(PHASES), defaultdict(float), []) for _ in steps]
    launched = {event.correlation: event for event in by_kind["launch"]}
    pairs = [(event, launched.get(event.correlation)) for event in by_kind["gpu"]]
    if not pairs:
        pairs = _paired(by_kind["started"], by_kind["ran"])
        pairs += [(event, event) for own in regions.values() for event in own if event.kind in _COMPUTE]
    for event, launch in pairs:
        match, began = _NAMED.search(event.name), (launch or event).start
        name = _phase_at(regions[launch.thread], began) if launch else match and match.lastgroup
        number = bisect_right(steps, (began, float("inf"))) - 1
        if name is None or number < 0 or began > steps[number][1]:
            continue
        phase = PHASES.index(name)
        if name in _COMPUTE:
            found[number].compute_ms[phase] += (event.end - event.start) / 1e3
            found[number].kernels_ms[event.name] += (event.end - event.start) / 1e3
        elif event.kind == "ran" or _COLLECTIVE.search(event.name):
            found[number].collectives.append(Collective(phase, event.start, event.end))
    return found


def _phase_at(regions: list[Event], time: float) -> str | None:
    """The phase of the region of a thread at this time; None for none."""
    number = bisect_right(regions, time, key=lambda event: event.start) - 1
    return regions[number].kind if number >= 0 and time <= regions[number].end else None


def _paired(started: list[Event], ran: list[Event]) -> list[tuple[Event, Event | None]]:
    """Gloo's collectives with the operators that started them, in the order of its queue; an operator may be missing."""
    waiting, pairs = deque(started), list[tuple[Event, Event | None]]()
    for each in ran:
        is_own = waiting and waiting[0].start <= each.start
        pairs.append((each, waiting.popleft() if is_own else None))
    return pairs


def trace_files(folder: Path) -> list[Path]:
    """The traces of a profile: all `rank*.json` and `rank*.json.gz` of a folder, or those that a profiler's handler named.

    Raises:
        ValueError: there are none.
    """
    found = sorted(path for path in folder.iterdir() if path.name.endswith(_SUFFIXES) and _RANK.search(path.name))
    found = found or sorted(folder.glob("*.pt.trace.json*"))  # of torch.profiler.tensorboard_trace_handler
    if not found:
        raise ValueError(f"{folder} has no traces; name them rank0.json.gz, rank1.json.gz and so on")
    return found


def traced_sample(
    paths: Sequence[Path], task: PlacementTask, placement: Placement, versions: Mapping[str, str]
) -> CostSample:
    """The cost of a step of the job, medians over the profiled steps.

    Args:
        paths: traces of all ranks or some, each of the same steps.
        task: the job's tables, devices and setting, with the batch of all ranks.
        placement: that the job ran.
        versions: of the job's libraries.

    Raises:
        ValueError: a trace cannot be read, or is not of this plan.
    """
    if problem := violation(task, placement):
        raise ValueError(f"the plan is none of {task.name}: {problem}; give the plan and tables of the profiled job")
    ranks = _by_rank([read_trace(path) for path in paths], task.num_devices)
    count = Shards.of(task, placement).device.bincount(minlength=task.num_devices).tolist()
    for rank, trace in ranks.items():
        has_lookups = any(sum(step.compute_ms) for step in trace.steps)
        if has_lookups != bool(count[rank]):
            looks = "looks up tables" if has_lookups else "looks up none"
            raise ValueError(
                f"{trace.source} {looks}, but the plan puts {count[rank]} shards on rank {rank}; give the plan that ran"
            )
    steps = min(len(trace.steps) for trace in ranks.values())
    phases_ms = torch.full((task.num_devices, len(PHASES)), torch.nan)
    compute_ms = np.array([[step.compute_ms for step in trace.steps[:steps]] for trace in ranks.values()])  # [R, N, 4]
    comm_ms = _communication_ms(list(ranks.values()), steps, is_whole=len(ranks) == task.num_devices)
    phases_ms[list(ranks)] = torch.from_numpy(np.median(compute_ms + comm_ms, axis=1)).float()
    hardware = Counter(trace.hardware or "CPU" for trace in ranks.values()).most_common(1)[0][0]
    return CostSample(
        task=task,
        placement=placement,
        costs=DeviceCosts(phases_ms),
        batch_size=task.batch_size or 1,
        repeats=steps,
        clock="profiler",
        testbed=TRACED,
        hardware=f"{hardware} x{task.num_devices}",
        versions=versions,
    )


def _by_rank(traces: Sequence[RankTrace], num_devices: int) -> dict[int, RankTrace]:
    """The traces by rank, as they say themselves or their files are named."""
    ranks: dict[int, RankTrace] = {}
    for trace in traces:
        named = _RANK.search(Path(trace.source).name)
        rank = trace.rank if trace.rank is not None else int(named[1]) if named else None
        others = (num_devices if trace.num_ranks is None else trace.num_ranks) != num_devices
        if rank is None or rank in ranks or not 0 <= rank < num_devices or others:
            raise ValueError(
                f"{trace.source} is of rank {rank} of {trace.num_ranks or 'some'}, the plan of {num_devices}; give one trace "
                "per rank of the plan's job"
            )
        ranks[rank] = trace
    return dict(sorted(ranks.items()))


def _communication_ms(traces: Sequence[RankTrace], steps: int, *, is_whole: bool) -> NDArray[np.float64]:
    """`[R, N, 4]` of each rank and step, 0 for compute."""
    run = [[(n, each) for n in range(steps) for each in trace.steps[n].collectives] for trace in traces]
    kinds = [[(n, each.phase) for n, each in own] for own in run]  # [R][C] step and phase
    if any(own != kinds[0] for own in kinds):
        raise ValueError(
            f"ranks took part in {shown(sorted(set(map(len, run))))} exchanges of vectors; give traces of the same steps of "
            "one job"
        )
    times = np.array([[(each.start, each.end) for _, each in own] for own in run])
    start, end = times.reshape(len(traces), -1, 2).transpose(2, 0, 1)  # [R, C] microseconds
    if is_whole:
        # of a rank's clock
        late = np.median(end - np.median(end, axis=0), axis=1, keepdims=True) if kinds[0] else 0.0
        took = (end - late) - (start - late).max(axis=0, keepdims=True)
    else:
        took = np.broadcast_to((end - start).min(axis=0, keepdims=True), start.shape)
    found = np.zeros((len(traces), steps, len(PHASES)))
    for c, (step, phase) in enumerate(kinds[0]):
        found[:, step, phase] += took[:, c].clip(min=0) / 1e3
    return found
