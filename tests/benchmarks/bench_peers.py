"""The published rivals against dreamshard: true simulated cost of the same unseen tasks, and time to place, at two sizes.

dreamshard is trained at 50x4 from 100 placements measured with noise, and serves 800x128 too. `rnn_predicted` and
`neuroshard_predicted` place by its cost network. `neuroshard` is fitted to the same 100 placements. What serves only one
number of devices is trained anew at 800x128: `neuroshard` is fitted to 100 placements measured there, `rnn` measures 100
there, and `rnn_predicted` takes 10 updates instead of 300, which would take an hour.
TorchRec's planner gets the bandwidths of the simulated accelerator, and at 800x128 a minute for each plan in columns.

Tables stay whole, except in the rows of placers that split them by columns, where dreamshard does so too; those are of mixed
dims only: a cost network trained on dim 16 alone predicts narrower shards badly.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dreamshard.baselines import RandomPlacer
from dreamshard.costs import CostSample
from dreamshard.peers import LEARNED, MEASURING, PeerTraining, peer, trained_peer
from dreamshard.peers.neuroshard import NeuroShardPlacer
from dreamshard.peers.torchrec_planner import COLUMNS, WHOLE, TorchRecPlanner
from dreamshard.placer import Placer
from dreamshard.search import DreamShardPlacer
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.specs import DEFAULT_SPEC, accelerator
from dreamshard.training import TrainingState, make_placer, propose
from tests.benchmarks.measuring import Row, trained_with_samples
from tests.benchmarks.pools import ALL_DIMS, TRAINED, Dims, Size, pools, repeated, tasks
from tests.helpers.testbeds import simulated

LARGE = Size(800, 128)
COUNTS, QUICK_COUNTS = {TRAINED: 10, LARGE: 3}, {TRAINED: 3, LARGE: 1}
MEASUREMENTS = 100
AT_LARGE = PeerTraining(updates=10)
PLAN_S = 60
EXACT = simulated(noise=0.0)


@dataclass(frozen=True)
class Rival:
    """A rival, and what is said beside its figures."""

    placer: Placer
    beside: str = ""
    splits: bool = False


def rows(quick: bool = False) -> Iterator[Row]:
    """Mean cost over dreamshard's, above 1 where dreamshard is cheaper; `ratio` is the same."""
    for dims in ALL_DIMS:
        state, samples = trained_with_samples(dims, 0)
        placer = make_placer(state)
        for size in (TRAINED, LARGE):
            count = (QUICK_COUNTS if quick else COUNTS)[size]
            drawn = tasks(pools(dims)[1], size, count, seed=200)
            own = samples if size == TRAINED else _measured(state, dims, size)
            rivals = _rivals(placer, dims, size, own)
            for splits in (False, True):
                chosen = {name: rival for name, rival in rivals.items() if rival.splits == splits}
                if chosen and not (splits and dims == "dim16"):
                    yield from _compared(replace(placer, columns=splits), chosen, drawn, f"{size}, {dims}")


def _rivals(placer: DreamShardPlacer, dims: Dims, size: Size, samples: list[CostSample]) -> dict[str, Rival]:
    """Every rival, with the CPU time of its training."""
    spec = accelerator(DEFAULT_SPEC)
    rivals = {"random": Rival(RandomPlacer())}
    for name in (MEASURING, *LEARNED):
        began = time.process_time()
        training = PeerTraining() if size == TRAINED else AT_LARGE  # both have one output per device
        learning = tasks(repeated(pools(dims)[0], size.tables), size, 50 if size == TRAINED else 5, seed=5)
        rival = trained_peer(
            name, placer, learning, 0, training, measure=simulated().measure, measurements=MEASUREMENTS
        )
        by = f"{MEASUREMENTS} measurements" if name == MEASURING else f"{training.updates} updates at {size}"
        rivals[name] = Rival(rival, f", {by}, trained in {time.process_time() - began:.0f} s CPU")
    began = time.process_time()
    fitted = peer("neuroshard_columns", placer, samples=samples)
    beside = f", {len(samples)} measurements, fitted in {time.process_time() - began:.0f} s CPU"
    assert isinstance(fitted, NeuroShardPlacer)
    rivals["neuroshard"] = Rival(replace(fitted, columns=False), beside)
    predicted = peer("neuroshard_predicted_columns", placer)
    assert isinstance(predicted, NeuroShardPlacer)
    rivals["neuroshard_predicted"] = Rival(replace(predicted, columns=False))
    rivals[WHOLE] = Rival(TorchRecPlanner.on(spec))
    columns = replace(TorchRecPlanner.on(spec, COLUMNS), timeout_s=None if size == TRAINED else PLAN_S)
    rivals[COLUMNS] = Rival(columns, splits=True)
    if size == TRAINED:
        rivals["neuroshard_columns"] = Rival(fitted, beside, splits=True)
        rivals["neuroshard_predicted_columns"] = Rival(predicted, splits=True)
    return rivals


def _measured(state: TrainingState, dims: Dims, size: Size) -> list[CostSample]:
    """Placements of another size, drawn as in a training and measured with noise."""
    drawn = tasks(repeated(pools(dims)[0], size.tables), size, 5, seed=5)
    sampling = replace(state, config=replace(state.config, placements_per_iteration=MEASUREMENTS))
    return [simulated().measure(task, placement) for task, placement in propose(sampling, drawn)]


def _compared(ours: Placer, rivals: dict[str, Rival], drawn: list[PlacementTask], what: str) -> Iterator[Row]:
    reference, our_ms = _judged(ours, drawn)
    label = "split by columns" if any(rival.splits for rival in rivals.values()) else "whole tables"
    for name, rival in rivals.items():
        cost, place_ms = _judged(rival.placer, drawn)
        times = f"(places in {place_ms:.3g} ms CPU, dreamshard in {our_ms:.3g}{rival.beside})"
        ratio = cost / reference
        text = f"{what}, {label}: {name}'s cost / dreamshard's {times}"
        yield {"name": text, "value": ratio, "unit": "", "bar": None, "reference": 1, "ratio": ratio}


def _judged(placer: Placer, drawn: list[PlacementTask]) -> tuple[float, float]:
    """Mean true cost, and mean CPU milliseconds to place; of several tasks the first is placed once unmeasured."""
    if len(drawn) > 1:
        placer.place(drawn[0])
    cost = seconds = 0.0
    for task in drawn:
        began = time.process_time()
        placement = placer.place(task)
        seconds += time.process_time() - began
        if not task.is_legal(placement):
            raise AssertionError(f"{placer.name} placed {task.name} illegally")
        cost += EXACT.measure(task, placement).overall_ms
    return cost / len(drawn), 1e3 * seconds / len(drawn)
