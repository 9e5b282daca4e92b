"""Whether AutoShard's policy is trained for long enough: its default number of updates against three times as many.

At the two sizes of `bench_autoshard`, from 100 placements measured with noise each, on the same held-out tasks. The larger
number changes nothing else but the placements that the policy proposes, and so what is measured. What one saves over another
has a 95 % interval over tasks and seeds.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context

import torch

from dreamshard.autoshard import AutoShardConfig
from dreamshard.baselines import RULES_OF_THUMB, baselines
from tests.benchmarks.bench_autoshard import AUTHORS, OWN, Judged, Setting, heldout, judged, saved_over, trained
from tests.benchmarks.bench_autoshard_limits import GreedyOnPredictions
from tests.benchmarks.measuring import Row, row, spread
from tests.benchmarks.pools import Size

TIMES = (1, 3)
"""Policy updates, as multiples of the default."""

SEEDS, HELD_OUT, QUICK_HELD_OUT = (0, 1, 2), 40, 3


@dataclass(frozen=True)
class Found:
    """True compute of the slowest device by size, by the policy and by a greedy choice on its predictions; CPU seconds."""

    policy: dict[Size, Judged]
    greedy: dict[Size, Judged]
    training_s: float


def rows(quick: bool = False) -> Iterator[Row]:
    """Compute by either number of updates, and CPU time of training."""
    count = QUICK_HELD_OUT if quick else HELD_OUT
    for setting in (OWN,) if quick else (OWN, AUTHORS):
        jobs = list(product((setting,), TIMES, SEEDS[: 1 if quick else None], (count,)))
        with ProcessPoolExecutor(2, get_context("spawn")) as processes:
            results = list(processes.map(_found, jobs))
        found = {times: [each for job, each in zip(jobs, results, strict=True) if job[1] == times] for times in TIMES}
        for times in TIMES:
            seconds = [each.training_s for each in found[times]]
            title = f"{setting}, {_updates(times)}: CPU time of training {spread(seconds, 1, 's')}"
            yield row(title, statistics.mean(seconds), "s")
        for size in (setting.size, *setting.others):
            yield from _placed(setting, size, count, found)


def _placed(setting: Setting, size: Size, count: int, found: Mapping[int, Sequence[Found]]) -> Iterator[Row]:
    """Compute of one size by either number of updates."""
    drawn = heldout(setting, size, count)
    rules = {name: judged(baselines()[name], drawn) for name in RULES_OF_THUMB}
    best = min(rules, key=lambda name: rules[name].compute_ms)
    usual = [each.policy[size] for each in found[TIMES[0]]]
    for times in TIMES:
        ours, greedy = [each.policy[size] for each in found[times]], [each.greedy[size] for each in found[times]]
        costs = [each.compute_ms for each in ours]
        others = {best: rules[best], "greedy on its predictions": greedy}
        others |= {_updates(TIMES[0]): usual} if times != TIMES[0] else {}
        savings = ", ".join(f"{saved_over(other, ours)} % over {name}" for name, other in others.items())
        what = f"{setting}, {_updates(times)}, placed at {size}: compute {spread(costs, 1, 'ms')}"
        yield row(
            f"{what}, saves {savings}; reference: {best}", statistics.mean(costs), "ms", None, rules[best].compute_ms
        )


def _updates(times: int) -> str:
    config = AutoShardConfig()
    return f"{times * config.iterations * config.policy_updates} policy updates"


def _found(job: tuple[Setting, int, int, int]) -> Found:
    setting, times, seed, count = job
    torch.set_num_threads(1)
    config, began = AutoShardConfig(), time.process_time()
    placer = trained(setting, seed, replace(config, policy_updates=times * config.policy_updates))
    seconds = time.process_time() - began
    drawn = {size: heldout(setting, size, count) for size in (setting.size, *setting.others)}
    greedy = GreedyOnPredictions(placer)
    return Found(
        {size: judged(placer, own) for size, own in drawn.items()},
        {size: judged(greedy, own) for size, own in drawn.items()},
        seconds,
    )
