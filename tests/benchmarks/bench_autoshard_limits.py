"""What keeps AutoShard from placing better: its predictions on unseen tables, or its policy.

Trained at 50x4 from 100 and from 500 placements, with dim 16 and with mixed dims, on the simulated testbed. Its policy is
compared with a greedy choice on the same predictions, and with one on the true compute: between the first two lies what the
policy loses, between the last two what the predictions do. The error is of the devices' compute in placements by rules.
What one saves over another has a 95 % interval over tasks and seeds together.
"""

import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context

import torch

from dreamshard.autoshard import AutoShardConfig, AutoShardPlacer, fit_costs, improve_policy, make_placer, propose
from dreamshard.autoshard import start_training as start_autoshard
from dreamshard.baselines import RULES_OF_THUMB, baselines
from dreamshard.costs import CostSample
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask
from tests.benchmarks.bench_autoshard import Judged, TrueGreedy, compute_ms, judged, saved_over
from tests.benchmarks.measuring import Row, row, spread
from tests.benchmarks.pools import TRAINED, pools, tasks
from tests.helpers.testbeds import simulated

SEEDS, HELD_OUT, QUICK_HELD_OUT, MEASURED = (0, 1, 2), 40, 3, (100, 500)


@dataclass(frozen=True)
class Found:
    """True compute of the slowest device, by who places; and the error of predicted compute, as a share."""

    policy: Judged
    greedy: Judged
    error: float


@dataclass(frozen=True)
class GreedyOnPredictions:
    """Descending in predicted compute alone, each table to the device whose predicted compute is least with it."""

    placer: AutoShardPlacer
    name: str = "greedy_on_predictions"

    @torch.no_grad()
    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """Devices without room are passed over; the tasks have room for all."""
        network, normaliser = self.placer.cost_network, self.placer.normaliser
        latents = network.encode(normaliser(task.tables))
        sums, used = torch.zeros(task.num_devices, latents.shape[1]), torch.zeros(task.num_devices, dtype=torch.int64)
        device = torch.empty(len(latents), dtype=torch.int64)
        for t in torch.argsort(network.compute_ms(latents), descending=True).tolist():
            predicted = network.compute_ms(sums + latents[t])
            predicted[used + task.table_bytes[t] > task.memory_bytes] = torch.inf
            device[t] = chosen = int(predicted.argmin())
            sums[chosen] += latents[t]
            used[chosen] += task.table_bytes[t]
        return Placement.whole(device, task.num_devices)


def rows(quick: bool = False) -> Iterator[Row]:
    """Compute of the slowest device by policy and by greedy choices, and the error of the predictions."""
    count = QUICK_HELD_OUT if quick else HELD_OUT
    jobs = list(product(("dim16", "mixed"), MEASURED[: 1 if quick else 2], SEEDS[: 1 if quick else 3], (count,)))
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        found = dict(zip(jobs, processes.map(_found, jobs), strict=True))
    for dims in dict.fromkeys(dims for dims, *_ in jobs):
        drawn = _heldout(dims, count)
        rules = {name: judged(baselines()[name], drawn) for name in RULES_OF_THUMB}
        best = min(rules, key=lambda name: rules[name].compute_ms)
        true = judged(TrueGreedy(), drawn)
        for measured in dict.fromkeys(measured for _, measured, *_ in jobs):
            own = [each for job, each in found.items() if job[:2] == (dims, measured)]
            what = f"{dims}, {TRAINED}, {measured} placements"
            errors = [100 * each.error for each in own]
            yield row(f"{what}: error on unseen tables {spread(errors, 1, '%')}", statistics.mean(errors), "%")
            policy, greedy = [each.policy for each in own], [each.greedy for each in own]
            exact = f"greedy on the true compute ({true.compute_ms:.3g} ms)"
            for name, ours, title, other in (
                ("policy", policy, "greedy on its predictions", greedy),
                ("greedy on its predictions", greedy, exact, true),
            ):
                costs = [each.compute_ms for each in ours]
                savings = f"{saved_over(rules[best], ours)} % over {best}, {saved_over(other, ours)} % over {title}"
                title = f"{what}: compute by {name} {spread(costs, 1, 'ms')}, saves {savings}; reference: {best}"
                yield row(title, statistics.mean(costs), "ms", None, rules[best].compute_ms)


def _found(job: tuple[str, int, int, int]) -> Found:
    dims, measured, seed, count = job
    torch.set_num_threads(1)
    config = AutoShardConfig()
    config = replace(config, placements_per_iteration=measured // config.iterations)
    pool, testbed = pools(dims)[0], simulated()
    drawn = tasks(pool, TRAINED, 50, seed=5)
    state = start_autoshard(pool, config, seed)
    samples: list[CostSample] = []
    for _ in range(config.iterations):
        samples += [testbed.measure(task, placement) for task, placement in propose(state, drawn)]
        fit_costs(state, samples)
        improve_policy(state, drawn)
    placer, held_out = make_placer(state), _heldout(dims, count)
    return Found(judged(placer, held_out), judged(GreedyOnPredictions(placer), held_out), _error(placer, held_out))


def _error(placer: AutoShardPlacer, drawn: Sequence[PlacementTask]) -> float:
    """Mean relative error of every device's compute."""
    errors = []
    for task in drawn:
        for rule in baselines().values():
            placement = rule.place(task)
            true = compute_ms(task, placement.device[None])[0]
            errors.append(float(((placer.predict_compute_ms(task, placement) - true).abs() / true).mean()))
    return statistics.mean(errors)


def _heldout(dims: str, count: int) -> list[PlacementTask]:
    return tasks(pools(dims)[1], TRAINED, count, seed=300)
