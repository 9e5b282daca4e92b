"""PyTorch profiler traces of a running job -> cost samples -> a placer that knows the job's real costs.

A rank's trace gives the embedding part of each profiled step. What an event counts as is decided by the operator or
annotation that launched it, by the names that FBGEMM and TorchRec have used since 2022. A GPU trace has kernels, joined with
their launch by a correlation number. A CPU trace has operators, and the collectives that gloo ran, in the order in which they
were started.

Waiting is no communication: with the traces of all ranks, a collective takes from the arrival of the last rank. Clocks of
hosts differ, so ranks are aligned by the ends of their collectives. With the traces of some ranks, it takes as long as on the
one of them that waited least, which is an upper bound.

A placer for one model learns from few profiles of its job, with a preset of the hardware as prior. The prior is what the
preset says of placements of the same tables, scaled by phase to what was observed: the preset knows how costs change with a
table's figures, the profiles how much there is of them here. All its placements together count as `PRIOR_DEVICES` observed
devices, so the more is observed, the less it matters.
"""

import gzip
import json
import math
import re
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean, geometric_mean, mode
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.random import Generator
from torch import Tensor

from dreamshard.cost_model import CostData, Normaliser, StructuredCostNetwork
from dreamshard.costs import PHASES, TRACED, CostSample, DeviceCosts
from dreamshard.files import InputError, reading, shown
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.hardware.roofline import sharding_costs
from dreamshard.policy.mdp import PolicyNetwork
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import Placement
from dreamshard.tasks import PlacementTask, Shards, violation

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
        compute_ms: by phase, 0 for communication: kernels (on CPUs operators) of fused lookups, gradients and optimizer.
        collectives: of pooled vectors or their gradients, from this rank's arrival, in the order of their starts.
    """

    compute_ms: list[float]
    collectives: list[Event]


@dataclass(frozen=True)
class RankTrace:
    """The profiled steps of a rank, by the profiler's names of them.

    The trace may not say which rank of how many it is; `hardware` names the GPU, and is empty on CPUs.
    """

    source: Path
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
    steps, devices = _profiled(events)
    if not steps:
        raise InputError(f"{path} has no ProfilerStep; call the profiler's `step()` after each training step")
    if job.get("backend") == "nccl" and not is_on_gpu:
        raise InputError(f"{path} has no kernels of its GPU; profile with ProfilerActivity.CUDA too")
    if len(devices) > 1:
        raise InputError(f"{path} has lookups of GPUs {shown(sorted(devices))}; profile a job of one process per GPU")
    forward, backward = (any(step.compute_ms[PHASES.index(phase)] for step in steps.values()) for phase in _COMPUTE)
    if forward != backward or not (forward or any(step.collectives for step in steps.values())):
        has = "lookups but no backward pass" if forward else "no fused lookups of FBGEMM, no exchange of their vectors"
        raise InputError(f"{path} has {has}; profile training steps of a model that TorchRec sharded")
    hardware = names[0] if is_on_gpu and names else ""
    return RankTrace(path, job.get("rank"), job.get("world_size"), hardware, steps)


def _parsed(text: str) -> Any:
    """The content of a trace, mended if it is no JSON."""
    load = partial(json.loads, object_hook=_kept, strict=False)
    try:
        return load(text)
    except json.JSONDecodeError:
        return load(_INVALID.sub(lambda match: match[1] or ("0" if match[0] != "\\" else "\\\\"), text))


def _kept(fields: dict[str, Any]) -> Any:
    """What is needed of a JSON object; most events are dropped as soon as they are read, which keeps memory small."""
    if "ph" not in fields:  # no event
        return fields
    name, kind = str(fields.get("name")), _CATEGORIES.get(str(fields.get("cat")).lower())
    if kind == "cpu":
        match = _KINDS.search(name)
        kind = match and match.lastgroup
    if kind is None or fields["ph"] != "X":
        return None
    start, arguments = float(fields["ts"]), fields.get("args") or {}
    end, thread = start + float(fields.get("dur", 0)), (fields.get("pid"), fields.get("tid"))
    return Event(kind, name, thread, start, end, arguments.get("correlation"), arguments.get("device"))


def _profiled(events: Iterable[Event]) -> tuple[dict[str, ProfiledStep], set[Any]]:
    """The events of each step by its name, by when they were launched, and the GPUs that looked up."""
    by_kind = defaultdict[str, list[Event]](list)
    regions = defaultdict[Any, list[Event]](list)  # operators and annotations, the outermost ones of each thread
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        by_kind[event.kind].append(event)
        outer = regions[event.thread]
        if event.kind in PHASES and (not outer or event.start >= outer[-1].end):
            outer.append(event)
    profiled, devices = {step.name: ProfiledStep([0.0] * len(PHASES), []) for step in by_kind["step"]}, set()
    launched = {event.correlation: event for event in by_kind["launch"] if event.correlation is not None}
    pairs = [(event, launched.get(event.correlation, event)) for event in by_kind["gpu"]]
    if not pairs:
        pairs = _paired(by_kind["started"], by_kind["ran"])
        pairs += [(event, event) for in_region in regions.values() for event in in_region if event.kind in _COMPUTE]
    for event, launch in sorted(pairs, key=lambda pair: pair[1].start):
        match = _KINDS.search(event.name)
        step, region = (_at(some, launch.start) for some in (by_kind["step"], regions[launch.thread]))
        name = region.kind if region else match and match.lastgroup
        if name not in PHASES or step is None:
            continue
        if name in _COMPUTE:
            profiled[step.name].compute_ms[PHASES.index(name)] += (event.end - event.start) / 1e3
            devices |= {event.device} - {None}
        elif event.kind == "ran" or "nccl" in event.name.lower():
            profiled[step.name].collectives.append(event._replace(kind=name))
    return profiled, devices


def _at(events: list[Event], time: float) -> Event | None:
    """The event at this time, of some that follow one another; None for none."""
    number = bisect_right(events, time, key=lambda event: event.start) - 1
    return events[number] if number >= 0 and time <= events[number].end else None


def _paired(started: list[Event], ran: list[Event]) -> list[tuple[Event, Event]]:
    """Gloo's collectives with the operators that started them, in the order of its queue, or with themselves."""
    waiting, pairs = deque(started), []
    for event in ran:
        is_own = waiting and waiting[0].start <= event.start
        pairs.append((event, waiting.popleft() if is_own else event))
    return pairs


def trace_files(folder: Path) -> list[Path]:
    """The traces of a profile: all `rank*.json` and `rank*.json.gz` of a folder, or those that a profiler's handler named.

    Raises:
        ValueError: there are none.
    """
    files = sorted(path for path in folder.iterdir() if path.name.endswith(_SUFFIXES) and _RANK.search(path.name))
    files = files or sorted(folder.glob("*.pt.trace.json*"))  # of torch.profiler.tensorboard_trace_handler
    if not files:
        raise ValueError(f"{folder} has no traces; name them rank0.json.gz, rank1.json.gz and so on")
    return files


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
        ValueError: a trace cannot be read, or is not of this plan, or the plan is not of the task.
    """
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
        named = _RANK.search(trace.source.name)
        rank = trace.rank if trace.rank is not None else int(named[1]) if named else None
        is_other = trace.num_ranks not in (None, num_devices)
        if rank is None or rank in ranks or not 0 <= rank < num_devices or is_other:
            raise ValueError(
                f"{trace.source} is of rank {rank} of {trace.num_ranks or 'some'}, the plan of {num_devices}; give one trace "
                "per rank of the plan's job"
            )
        ranks[rank] = trace
    return dict(sorted(ranks.items()))


def _communication_ms(profiled: Sequence[Sequence[ProfiledStep]], *, is_whole: bool) -> Float[np.ndarray, "R N 4"]:
    """Of each rank and step, 0 for compute."""
    run = [[(n, collective) for n, step in enumerate(steps) for collective in step.collectives] for steps in profiled]
    kinds = [[(n, collective.kind) for n, collective in of_rank] for of_rank in run]  # [R][C] step and phase
    if any(of_rank != kinds[0] for of_rank in kinds):
        raise ValueError(f"ranks took part in {shown(sorted(set(map(len, run))))} exchanges of vectors; {_SAME}")
    times = np.array([[(collective.start, collective.end) for _, collective in of_rank] for of_rank in run])
    start, end = times.reshape(len(run), -1, 2).transpose(2, 0, 1)  # [R, C] microseconds
    took = (end - start).min(axis=0)
    if is_whole and kinds[0]:
        late = np.median(end - np.median(end, axis=0), axis=1, keepdims=True)  # of a rank's clock
        took = (end - late) - (start - late).max(axis=0)
    took = np.broadcast_to(took, start.shape)
    comm_ms = np.zeros((len(run), len(profiled[0]), len(PHASES)))
    for c, (step, phase) in enumerate(kinds[0]):
        comm_ms[:, step, PHASES.index(phase)] += took[:, c].clip(min=0) / 1e3
    return comm_ms


PRIOR_DEVICES = 40.0
"""Devices that the prior counts as."""
PRESET_ERROR = 0.15
"""Relative standard error of what a preset says of a device, next to which observed devices count more."""

_PRIOR_PLACEMENTS, _ITERATIONS = 24, 40  # the latter of a refit, which starts from the fit
_HELD_OUT = 3  # profiles or devices that are left out in turn
_CALIBRATED = 4.5  # deviations of the refits in an interval, so that it holds 90 % of the savings on a real GPU's law
_LEAST_ERROR = 0.005  # of a saving
_UNEVEN, _TRIES = 0.7, 20  # deviation of the logarithm of a device's share of the tables moved; draws until one fits
_ERROR = 0.3  # deviation of the logarithms of a preset's errors, by which refits differ: of a table, of all constants
_MOVED = (0.1, 0.3, 1.0)  # shares of the tables that a placement of the prior puts elsewhere


@dataclass(frozen=True)
class Interval:
    """A predicted saving, as a share of the cost in use, `of_ms`, with 90 % of what it may really be."""

    mean: float
    low: float
    high: float
    of_ms: float

    def __str__(self) -> str:
        ends = f"{100 * self.low:.1f} to {100 * self.high:.1f}"
        return f"{100 * self.mean:.1f} % (90 % interval {ends}) of the {self.of_ms:.3f} ms"


@dataclass(frozen=True)
class Learned:
    """What a few samples taught: a placer, whose policy is untrained, and networks refitted with random weights."""

    placer: DreamShardPlacer
    refits: tuple[StructuredCostNetwork, ...]

    def saving(self, task: PlacementTask, current: Placement, planned: Placement) -> Interval:
        """What `planned` saves over `current`.

        The refits tell both how far few samples leave it open, and how much a search among placements chose the network's
        own errors, since it did not search on them.
        """
        placers = [replace(self.placer, cost_network=network) for network in self.refits]
        before, after = ([float(by.predict(task, of).overall_ms()) for by in placers] for of in (current, planned))
        logs = np.log(before) - np.log(after)
        reach = _CALIBRATED * max(logs.std(ddof=1), _LEAST_ERROR)
        mean, low, high = (-np.expm1(-logs.mean() - reach * np.array([0, -1, 1]))).tolist()
        return Interval(mean, low, high, geometric_mean(before))


def learn(
    samples: Sequence[CostSample],
    spec: AcceleratorSpec,
    seed: int = 0,
    prior_devices: float = PRIOR_DEVICES,
    refits: int = 8,
) -> Learned:
    """Fit a cost network to samples of one job and to the preset of its hardware.

    Args:
        samples: of profiles, on as many devices each, the newest last.
        prior_devices: devices that the prior counts as.
        refits: for `Learned.saving`, which needs at least 2.
    """
    generator, normaliser = np.random.default_rng(seed), Normaliser.fit(samples[-1].task.tables)
    network = StructuredCostNetwork(normaliser)
    starts = islice(zip(cycle(samples), cycle(_MOVED)), _PRIOR_PLACEMENTS)
    prior = prior_samples([_varied(sample, share, generator) for sample, share in starts], samples, spec)
    data, is_prior = CostData.of([*prior, *samples], normaliser), slice(len(prior))
    data.weight[is_prior] = prior_devices / data.weight[is_prior].numel()
    data.error[is_prior] = PRESET_ERROR
    network.fit(data, None)
    network.measured_on = data.measured_on
    others, names = [], {name for sample in samples for name in sample.task.tables.names}
    for _ in range(refits):
        errors = {name: math.exp(_ERROR * generator.normal()) for name in sorted(names)}
        power = math.exp(_ERROR * generator.normal())
        costs = [sample.costs.phases_ms for sample in prior_samples(prior, samples, spec, errors, power)]
        drawn, refit = torch.from_numpy(generator.exponential(size=data.weight.shape)).float(), deepcopy(network)
        phases_ms = torch.cat([torch.stack(costs), data.phases_ms[len(prior) :]])
        refit.fit(replace(data, phases_ms=phases_ms, weight=data.weight * drawn), None, iterations=_ITERATIONS)
        others.append(refit)
    return Learned(DreamShardPlacer(network, PolicyNetwork(), normaliser), tuple(others))


def heldout_error(samples: Sequence[CostSample], spec: AcceleratorSpec) -> float:
    """Mean error of costs of devices that were not fitted to, over that of the slowest; NaN if there is one device.

    The newest profiles are left out in turn, or of a sole one some devices.
    """
    errors = []
    for kept, held in _divided(samples):
        predicted = learn(kept, spec, refits=0).placer.predict(held.task, held.placement)
        error_ms = (predicted.device_ms() - held.costs.device_ms()).abs()[held.costs.seen]
        errors += (error_ms / max(sample.overall_ms for sample in (*kept, held))).tolist()
    return fmean(errors) if errors else math.nan


def _divided(samples: Sequence[CostSample]) -> Iterator[tuple[list[CostSample], CostSample]]:
    """Samples to fit, and one to predict."""
    if len(samples) > 1:
        for number in range(len(samples))[-_HELD_OUT:]:
            yield [*samples[:number], *samples[number + 1 :]], samples[number]
        return
    (sample,) = samples
    seen = sample.costs.seen  # [D]
    for device in seen.nonzero().flatten()[:_HELD_OUT].tolist() if seen.sum() > 1 else ():
        is_held = torch.arange(len(seen))[:, None] == device
        kept, held = (torch.where(masked, torch.nan, sample.costs.phases_ms) for masked in (is_held, ~is_held))
        yield [replace(sample, costs=DeviceCosts(kept))], replace(sample, costs=DeviceCosts(held))


def prior_samples(
    placed: Sequence[CostSample],
    observed: Sequence[CostSample],
    spec: AcceleratorSpec,
    errors: Mapping[str, float] | None = None,
    power: float = 1.0,
) -> list[CostSample]:
    """What the preset says of placements, in proportion to what it says of the observed ones, by phase.

    Args:
        placed: samples of the placements, whose costs do not matter.
        observed: on as many devices.
        errors: factors by which it misjudges lookups of a table, by its name; None for 1.
        power: of costs around the mean device: below 1 if more is constant per device than it says.
    """

    def preset_ms(sample: CostSample) -> Float[Tensor, "D 4"]:
        task = sample.task
        if errors is not None:
            tables, factor = task.tables, torch.tensor([errors[name] for name in task.tables.names])
            counts = {name: (getattr(tables, name) * factor).long() for name in ("lookups", "unique_rows")}
            task = replace(task, tables=replace(tables, pooling_factor=tables.pooling_factor * factor, **counts))
        return sharding_costs(Shards.of(task, sample.placement), sample.batch_size, spec).phases_ms.float()

    traced = torch.cat([sample.costs.phases_ms[sample.costs.seen] for sample in observed])  # [N, 4]
    stated = torch.cat([preset_ms(sample)[sample.costs.seen] for sample in observed])  # [N, 4]
    mean = stated.mean(0).clamp(min=1e-9)  # [4]
    scale = traced.mean(0) / (stated / mean).pow(power).mean(0).clamp(min=1e-9)
    return [replace(sample, costs=DeviceCosts((preset_ms(sample) / mean).pow(power) * scale)) for sample in placed]


def _varied(sample: CostSample, share: float, generator: Generator) -> CostSample:
    """The sample with a share of its tables elsewhere, devices more or less full; as it is if no draw fits."""
    task, placement = sample.task, sample.placement
    favour = np.exp(generator.normal(0, _UNEVEN, task.num_devices))
    for _ in range(_TRIES):
        shardings = list(placement.tables)
        for t in np.flatnonzero(generator.random(len(shardings)) < share):
            sharding = shardings[t]
            if sharding.is_by_columns:
                where = generator.choice(task.num_devices, len(sharding.where), p=favour / favour.sum())
                shardings[t] = replace(sharding, where=tuple(where.tolist()))
        varied = replace(placement, tables=tuple(shardings))
        if not violation(task, varied, is_measured=True):
            return replace(sample, placement=varied)
    return sample
