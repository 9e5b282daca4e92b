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
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mode
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dreamshard.costs import PHASES, TRACED, CostSample, DeviceCosts
from dreamshard.files import InputError, reading, shown
from dreamshard.placement import Placement
from dreamshard.shards import Shards, violation
from dreamshard.tasks import PlacementTask

_EXCHANGED = "(?i:all2all|alltoall|reduce_?scatter)"
_PATTERNS = {
    "step": "^ProfilerStep",
    "started": "^c10d::",
    "ran": "^gloo:",
    "forward_compute": r"(split|dense|ssd)\w*embedding\w*_(lookup|forward)|\b(lxu|lru|lfu)_cache",
    "forward_comm": rf"{_EXCHANGED}\w*_fwd|## (variable_batch_)?(all2all_(pooled|sequence)|reduce_scatter)(?!\w*_bw)",
    "backward_comm": rf"{_EXCHANGED}\w*(_bw|Backward)",
    "backward_compute": r"LookupFunction\w*_Op|embedding_backward_codegen",
}
_KINDS = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _PATTERNS.items()))
_COMPUTE = "forward_compute", "backward_compute"
_CATEGORIES = {
    **dict.fromkeys(("kernel", "memcpy", "memset", "gpu_memcpy", "gpu_memset"), "gpu"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "runtime"), "launch"),
    **dict.fromkeys(("cpu_op", "operator", "user_annotation"), "cpu"),
}
_RANK = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
_INVALID = re.compile(r'(\\(?:["\\/bfnrt]|u[\da-fA-F]{4}))|\\|(?<=[:,[])\s*-?(?:nan|inf|N/A)\b')
"""What old profilers write: lone backslashes in names, and these numbers without quotes; or a valid escape."""
_OF_TRACE = {"traceEvents", "world_size", "totalGlobalMem"}  # keys of the trace, of its job, of a GPU
_SUFFIXES, _SAME = (".json", ".json.gz"), "give traces of the same steps of one job"


class Event(NamedTuple):
    """What is kept of an event of the trace; times in microseconds."""

    kind: str
    name: str
    thread: Any
    start: float
    end: float
    correlation: Any
    device: Any


@dataclass(frozen=True)
class ProfiledStep:
    """The embedding part of a training step on one rank.

    Attributes:
        compute_ms: by phase, 0 for communication: kernels (on CPUs operators) of fused lookups; of their gradients, sort and
            optimizer.
        collectives: of pooled vectors or their gradients, by phase, from this rank's arrival, in the order in which they were
            started.
    """

    compute_ms: list[float]
    collectives: list[Event]


@dataclass(frozen=True)
class RankTrace:
    """The profiled steps of a rank.

    Attributes:
        source: the file.
        rank: None if the trace does not say.
        num_ranks: of the job, likewise.
        hardware: name of the GPU; empty on CPUs.
        steps: by the profiler's name of the step.
    """

    source: str
    rank: int | None
    num_ranks: int | None
    hardware: str
    steps: dict[str, ProfiledStep]


def read_trace(path: Path) -> RankTrace:
    """Read a Chrome trace of `torch.profiler`, `.json` or `.json.gz`, of training steps.

    Raises:
        ValueError: the file is damaged, or has no profiled step, no fused lookup, or no backward pass.
    """
    with reading(path, "is not a complete trace of PyTorch's profiler", "profile again, and let the profiler end"):
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        trace = _parsed(content.decode(errors="replace"))
        events = [event for event in trace["traceEvents"] if isinstance(event, Event)]
        names = [str(gpu.get("name")) for gpu in trace.get("deviceProperties") or () if gpu]
    job, is_on_gpu = trace.get("distributedInfo") or {}, any(event.kind == "gpu" for event in events)
    steps = sorted((event for event in events if event.kind == "step"), key=lambda event: event.start)
    if not steps:
        raise InputError(f"{path} has no ProfilerStep; call the profiler's `step()` after each training step")
    if job.get("backend") == "nccl" and not is_on_gpu:
        raise InputError(f"{path} has no kernels of its GPU; profile with ProfilerActivity.CUDA too")
    found, devices = _profiled(events, steps)
    if len(devices) > 1:
        raise InputError(f"{path} has lookups of GPUs {shown(sorted(devices))}; profile a job of one process per GPU")
    forward, backward = (any(step.compute_ms[PHASES.index(phase)] for step in found) for phase in _COMPUTE)
    if forward != backward or not (forward or any(step.collectives for step in found)):
        has = (
            "lookups but no backward pass" if forward else "no fused lookups of FBGEMM and no exchange of their vectors"
        )
        raise InputError(f"{path} has {has}; profile training steps of a model that TorchRec sharded")
    hardware = names[0] if is_on_gpu and names else ""
    named = {event.name: step for event, step in zip(steps, found, strict=True)}
    return RankTrace(str(path), job.get("rank"), job.get("world_size"), hardware, named)


def _parsed(text: str) -> Any:
    """The content of a trace, mended if it is no JSON."""
    load = partial(json.loads, object_hook=_kept, strict=False)
    try:
        return load(text)
    except json.JSONDecodeError:
        return load(_INVALID.sub(lambda found: found[1] or ("0" if found[0] != "\\" else "\\\\"), text))


def _kept(fields: dict[str, Any]) -> Any:
    """What is needed of a JSON object; most events are dropped as soon as they are read, which keeps memory small."""
    if "ph" not in fields:  # arguments of an event, or the trace's own
        return (
            fields
            if _OF_TRACE & fields.keys()
            else "correlation" in fields and (fields["correlation"], fields.get("device"))
        )
    name, kind = str(fields.get("name")), _CATEGORIES.get(str(fields.get("cat")).lower())
    if kind == "cpu":
        match = _KINDS.search(name)
        kind = match and match.lastgroup
    if kind is None or fields["ph"] != "X":
        return None
    start = float(fields["ts"])
    correlation, device = fields.get("args") or (None, None)
    return Event(kind, name, fields.get("tid"), start, start + float(fields.get("dur", 0)), correlation, device)


def _profiled(events: Iterable[Event], steps: Sequence[Event]) -> tuple[list[ProfiledStep], set[Any]]:
    """The events of each step, by when they were launched, and the GPUs that looked up."""
    by_kind = defaultdict[str, list[Event]](list)
    regions = defaultdict[Any, list[Event]](list)  # operators and annotations, the outermost ones of each thread
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        by_kind[event.kind].append(event)
        outer = regions[event.thread]
        if event.kind in PHASES and (not outer or event.start >= outer[-1].end):
            outer.append(event)
    found, devices = [ProfiledStep([0.0] * len(PHASES), []) for _ in steps], set()
    launched = {event.correlation: event for event in by_kind["launch"] if event.correlation is not None}
    pairs = [(event, launched.get(event.correlation)) for event in by_kind["gpu"]]
    if not pairs:
        pairs = _paired(by_kind["started"], by_kind["ran"])
        pairs += [(event, event) for own in regions.values() for event in own if event.kind in _COMPUTE]
    for event, launch in sorted(pairs, key=lambda pair: (pair[1] or pair[0]).start):
        began = (launch or event).start
        match = _KINDS.search(event.name)
        name = (launch and _phase_at(regions[launch.thread], began)) or (match and match.lastgroup)
        number = bisect_right(steps, began, key=lambda step: step.start) - 1
        if name not in PHASES or number < 0 or began > steps[number].end:
            continue
        if name in _COMPUTE:
            found[number].compute_ms[PHASES.index(name)] += (event.end - event.start) / 1e3
            devices |= {event.device} - {None}
        elif event.kind == "ran" or "nccl" in event.name.lower():
            found[number].collectives.append(event._replace(kind=name))
    return found, devices


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
        has_lookups = any(sum(step.compute_ms) for step in trace.steps.values())
        if has_lookups != bool(count[rank]):
            looks = "looks up tables" if has_lookups else "looks up none"
            raise ValueError(
                f"{trace.source} {looks}, but the plan puts {count[rank]} shards on rank {rank}; give the plan that ran"
            )
    first, *others = (trace.steps for trace in ranks.values())
    names = [name for name in first if all(name in steps for steps in others)]
    if not names:
        raise ValueError(f"ranks have no profiled step in common; {_SAME}")
    profiled = [[steps[name] for name in names] for steps in (first, *others)]
    phases_ms = torch.full((task.num_devices, len(PHASES)), torch.nan)
    compute_ms = np.array([[step.compute_ms for step in steps] for steps in profiled])  # [R, N, 4]
    comm_ms = _communication_ms(profiled, is_whole=len(ranks) == task.num_devices)
    phases_ms[list(ranks)] = torch.from_numpy(np.median(compute_ms + comm_ms, axis=1)).float()
    hardware = mode(trace.hardware or "CPU" for trace in ranks.values())
    return CostSample(
        task=task,
        placement=placement,
        costs=DeviceCosts(phases_ms),
        batch_size=task.batch_size or 1,
        repeats=len(names),
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
        is_other = trace.num_ranks not in (None, num_devices)
        if rank is None or rank in ranks or not 0 <= rank < num_devices or is_other:
            raise ValueError(
                f"{trace.source} is of rank {rank} of {trace.num_ranks or 'some'}, the plan of {num_devices}; give one trace "
                "per rank of the plan's job"
            )
        ranks[rank] = trace
    return dict(sorted(ranks.items()))


def _communication_ms(profiled: Sequence[Sequence[ProfiledStep]], *, is_whole: bool) -> NDArray[np.float64]:
    """`[R, N, 4]` of each rank and step, 0 for compute."""
    run = [[(n, each) for n, step in enumerate(steps) for each in step.collectives] for steps in profiled]
    kinds = [[(n, each.kind) for n, each in own] for own in run]  # [R][C] step and phase
    if any(own != kinds[0] for own in kinds):
        raise ValueError(f"ranks took part in {shown(sorted(set(map(len, run))))} exchanges of vectors; {_SAME}")
    times = np.array([[(each.start, each.end) for _, each in own] for own in run])
    start, end = times.reshape(len(run), -1, 2).transpose(2, 0, 1)  # [R, C] microseconds
    if is_whole:
        # of a rank's clock
        late = np.median(end - np.median(end, axis=0), axis=1, keepdims=True) if kinds[0] else 0.0
        took = (end - late) - (start - late).max(axis=0, keepdims=True)
    else:
        took = np.broadcast_to((end - start).min(axis=0, keepdims=True), start.shape)
    found = np.zeros((len(run), len(profiled[0]), len(PHASES)))
    for c, (step, phase) in enumerate(kinds[0]):
        found[:, step, PHASES.index(phase)] += took[:, c].clip(min=0) / 1e3
    return found
