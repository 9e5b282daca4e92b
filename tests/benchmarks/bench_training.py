"""CPU seconds of one training iteration without its measurements: propose 10, fit the cost network, improve the policy.

The references are the authors' program on one core: 10 rollouts, 300 cost steps, 100 episodes.
"""

import statistics
import time
from collections.abc import Iterator

from dreamshard.costs import CostSample
from dreamshard.training import TrainingConfig
from tests.benchmarks.measuring import Row, row, spread
from tests.benchmarks.pools import Size, pools, tasks
from tests.helpers.testbeds import simulated
from tests.helpers.trained import fit_costs, improve_policy, propose, start_training

CASES = ((Size(50, 4), 0.25, 5.5), (Size(200, 8), None, 28.7))
STEPS = ("propose", "fit_costs", "improve_policy")


def rows(quick: bool = False) -> Iterator[Row]:
    """The iteration and its three steps at both sizes; the samples grow from 10 to 100 over the rounds."""
    for size, bar, reference in CASES:
        rounds = _rounds(size, 3 if quick else 6)
        totals = [sum(each) for each in rounds]
        name = f"training iteration, {size} {spread(totals, 1, 's')}"
        yield row(name, statistics.median(totals), "s CPU", bar, reference)
        for i, step in enumerate(STEPS):
            yield row(f"- of it {step}, {size}", statistics.median(each[i] for each in rounds), "s CPU")


def _rounds(size: Size, count: int) -> list[tuple[float, float, float]]:
    """CPU seconds of the steps, round by round, after one unmeasured round."""
    pool, testbed = pools("mixed")[0], simulated()
    drawn = tasks(pool, size, 50, seed=5)
    state = start_training(pool, TrainingConfig(), seed=0)
    samples: list[CostSample] = []
    found = []
    for _ in range(count + 1):
        began = time.process_time()
        proposals = propose(state, drawn)
        proposed = time.process_time() - began
        samples += [testbed.measure(task, placement) for task, placement in proposals]
        began = time.process_time()
        fit_costs(state, samples)
        fitted = time.process_time()
        improve_policy(state, drawn)
        found.append((proposed, fitted - began, time.process_time() - fitted))
    return found[1:]
