"""Traces of a job's ranks and the plan that it ran, as a cost sample.

Waiting is no communication: with the traces of all ranks, a collective takes from the arrival of the last rank. Clocks of
hosts differ, so ranks are aligned by the ends of their collectives. With the traces of some ranks, it takes as long as on the
one of them that waited least, which is an upper bound.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dreamshard.costs import PHASES, TRACED, CostSample, DeviceCosts
from dreamshard.files.text import shown
from dreamshard.placement import Placement
from dreamshard.shards import Shards, violation
from dreamshard.tasks import PlacementTask
from dreamshard.traces.reading import RankTrace, read_trace

_RANK = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
_SUFFIXES = (".json", ".json.gz")


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
    kinds = [[[each.phase for each in trace.steps[n].collectives] for n in range(steps)] for trace in traces]
    if any(own != kinds[0] for own in kinds):
        counts = [sum(map(len, own)) for own in kinds]
        raise ValueError(
            f"ranks took part in {shown(sorted(set(counts)))} exchanges of vectors; give traces of the same steps of one job"
        )
    phase = np.array([kind for own in kinds[0] for kind in own], np.int64)  # [C]
    step = np.repeat(np.arange(steps), [len(own) for own in kinds[0]])
    times = np.array([[each[1:] for own in trace.steps[:steps] for each in own.collectives] for trace in traces])
    start, end = times.reshape(len(traces), -1, 2).transpose(2, 0, 1)  # [R, C] microseconds
    if is_whole:
        late = (
            np.median(end - np.median(end, axis=0), axis=1, keepdims=True) if len(phase) else 0.0
        )  # of a rank's clock
        took = (end - late) - (start - late).max(axis=0, keepdims=True)
    else:
        took = np.broadcast_to((end - start).min(axis=0, keepdims=True), start.shape)
    found = np.zeros((len(traces), steps, len(PHASES)))
    for c in range(len(phase)):
        found[:, step[c], phase[c]] += took[:, c].clip(min=0) / 1e3
    return found
