"""The published rivals against dreamshard: true simulated cost of the same unseen tasks at 50x4, and time to place.

All place by the cost network that dreamshard trained from 100 placements measured with noise; `rnn` and `autoshard` are
trained on it across the training tasks. TorchRec's planner gets the bandwidths of the simulated accelerator. Tables stay
whole, except in one more row in which NeuroShard and dreamshard both split tables by columns, with mixed dims only: a cost
network trained on dim 16 alone predicts narrower shards badly, which NeuroShard's own pre-training covers.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

from dreamshard.peers import LEARNED, trained_peer
from dreamshard.peers.neuroshard import NeuroShardPlacer
from dreamshard.peers.torchrec_planner import TorchRecPlanner
from dreamshard.placer import Placer
from dreamshard.search import DreamShardPlacer
from dreamshard.testbeds.accelerators.specs import DEFAULT_SPEC, accelerator
from dreamshard.training import make_placer
from tests.benchmarks.measuring import Row, trained
from tests.benchmarks.pools import ALL_DIMS, TRAINED, Dims, pools, tasks
from tests.helpers.testbeds import simulated

COUNT, QUICK_COUNT = 10, 3
EXACT = simulated(noise=0.0)


def rows(quick: bool = False) -> Iterator[Row]:
    """Mean cost over dreamshard's, above 1 where dreamshard is cheaper; `ratio` is the same."""
    for dims in ALL_DIMS:
        placer = make_placer(trained(dims, 0))
        whole = replace(placer, columns=False)
        count = QUICK_COUNT if quick else COUNT
        rivals, beside = _rivals(whole, dims)
        yield from _compared(whole, rivals, dims, "whole tables", count, beside)
        if dims == "dim16":
            continue
        splitting: dict[str, Placer] = {"neuroshard": NeuroShardPlacer(placer.cost_network, placer.normaliser)}
        yield from _compared(placer, splitting, dims, "split by columns", count, {})


def _rivals(placer: DreamShardPlacer, dims: Dims) -> tuple[dict[str, Placer], dict[str, str]]:
    """Every rival on whole tables, and the CPU time of its training."""
    drawn, spec = tasks(pools(dims)[0], TRAINED, 50, seed=5), accelerator(DEFAULT_SPEC)
    rivals: dict[str, Placer] = {}
    beside = {}
    for name in LEARNED:
        began = time.process_time()
        rivals[name] = trained_peer(name, placer, drawn, seed=0)
        beside[name] = f", trained in {time.process_time() - began:.0f} s CPU"
    rivals["neuroshard"] = NeuroShardPlacer(placer.cost_network, placer.normaliser, columns=False)
    rivals["torchrec_planner"] = TorchRecPlanner(spec.memory_bytes_per_s, spec.link_bytes_per_s)
    return rivals, beside


def _compared(
    ours: Placer, rivals: dict[str, Placer], dims: Dims, label: str, count: int, beside: dict[str, str]
) -> Iterator[Row]:
    reference, our_ms = _judged(ours, dims, count)
    for name, rival in rivals.items():
        cost, place_ms = _judged(rival, dims, count)
        times = f"(places in {place_ms:.3g} ms CPU, dreamshard in {our_ms:.3g}{beside.get(name, '')})"
        ratio = cost / reference
        what = f"{TRAINED}, {dims}, {label}: {name}'s cost / dreamshard's {times}"
        yield {"name": what, "value": ratio, "unit": "", "bar": None, "reference": 1, "ratio": ratio}


def _judged(placer: Placer, dims: Dims, count: int) -> tuple[float, float]:
    """Mean true cost, and mean CPU milliseconds to place; the first task is placed once unmeasured."""
    drawn = tasks(pools(dims)[1], TRAINED, count, seed=200)
    placer.place(drawn[0])
    cost = seconds = 0.0
    for task in drawn:
        began = time.process_time()
        placement = placer.place(task)
        seconds += time.process_time() - began
        if not task.is_legal(placement):
            raise AssertionError(f"{placer.name} placed {task.name} illegally")
        cost += EXACT.measure(task, placement).overall_ms
    return cost / count, 1e3 * seconds / count
