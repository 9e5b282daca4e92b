"""Measures placements for a rival that learns from measured costs."""

from collections.abc import Iterator
from contextlib import contextmanager

from dreamshard.costs import CostSample
from dreamshard.placement import Placement
from dreamshard.rivals import Measure
from dreamshard.tasks import PlacementTask
from flows.runtime.content_keys import content_key
from flows.runtime.progress import report_progress
from flows.runtime.testbed_pool import TestbedReference, measure
from storage.lake.lake import EVALUATION
from storage.lake.sample_buffer import collecting
from storage.store import Store


@contextmanager
def measuring_for_rnn(store: Store, testbed: TestbedReference, tasks: str, measurements: int) -> Iterator[Measure]:
    """Yield what measures one placement; each sample is on disk at once, and in the lake when the block ends.

    The samples have a run of their own, which no training is fitted to. The same testbed, tasks and budget have the same run,
    and what that has measured is not measured again: neither after an interruption nor for another version.

    Args:
        tasks: key of the task sets.
        measurements: placements that will be measured.
    """
    run = f"rnn-{content_key('rnn', testbed, tasks, measurements)}"
    with collecting(store.lake, run, EVALUATION, testbed.dataset) as keep:
        known = {
            _identity(sample.task, sample.placement): sample for sample in store.lake.read_cost_samples(run_key=run)
        }
        done = 0

        def measured(task: PlacementTask, placement: Placement) -> CostSample:
            nonlocal done
            identity = _identity(task, placement)
            if identity not in known:
                known[identity] = measure(store, testbed, task, placement)
                keep(known[identity])
            done += 1
            if done < measurements:
                report_progress("evaluate", done, measurements, f"rnn learns from {task.name}")
            return known[identity]

        yield measured


def _identity(task: PlacementTask, placement: Placement) -> tuple[str, tuple[int, ...]]:
    return task.name, tuple(placement.device.tolist())
