"""Placers on held-out tasks: placed, measured and kept in the lake; what `evaluate` and `compare` share."""

from collections.abc import Callable, Mapping, Sequence

from dreamshard.costs import CostSample
from dreamshard.evaluation import EvaluationRow, evaluate
from dreamshard.placement import Placement
from dreamshard.placer import Placer
from dreamshard.recipes import EvaluationConfig
from dreamshard.tasks import PlacementTask
from flows.runtime.progress import advance
from flows.runtime.testbed_pool import TestbedReference, measure
from storage.lake import home_lake
from storage.lake.lake import EVALUATION
from storage.lake.sample_buffer import collecting


def measured_rows(
    key: str,
    placers: Mapping[str, Placer],
    heldout: Sequence[PlacementTask],
    predict_ms: Callable[[PlacementTask, Placement], float],
    config: EvaluationConfig,
    testbed: TestbedReference,
) -> list[EvaluationRow]:
    """Every placer on every task; each measurement is on disk as it comes, as a sample of the evaluation `key`.

    Raises:
        NoPlacementError: a task fits no placement; before anything is measured.
        MeasurementError: a rank died or hung.
    """
    total, done = config.repeats * len(placers) * len(heldout), 0

    def measured(drawn: PlacementTask, placement: Placement) -> CostSample:
        nonlocal done
        sample = measure(testbed, drawn, placement)
        keep(sample)
        done += 1
        if done < total:
            advance("evaluate", done, total, drawn.name)
        return sample

    with collecting(home_lake(), key, EVALUATION, testbed.dataset) as keep:
        return evaluate(placers, heldout, measured, predict_ms=predict_ms, repeats=config.repeats, seed=testbed.seed)
