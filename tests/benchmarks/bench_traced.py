"""What PyTorch's profiler shows of a TorchRec job, against what this project's ranks measure for the same plan and lookups.

The job of `tests/helpers/profiled_job.py`: 30 tables on four gloo ranks. Each row is a phase on a rank; medians of runs in
turns, since the machine must be quiet. Traces have the wall time of operators with warm caches, ranks the CPU time of
their thread with cold ones.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from scipy.stats import spearmanr

from dreamshard.costs import PHASES
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.kinds import ClusterTestbed
from dreamshard.traces import trace_files, traced_sample
from dreamshard.workloads import Lookups
from tests.benchmarks.measuring import Row, row
from tests.helpers.profiled_job import BATCH, RANKS, batch, placement, profile, task


def rows(quick: bool = False) -> Iterator[Row]:
    """A row per phase and rank; then how alike the order of ranks is."""
    traced, measured, placed = [], [], placement()
    setup = TestbedSetup(num_devices=RANKS, batch_size=BATCH * RANKS, lookups=lookups, warmups=3, repeats=15)
    for _ in range(1 if quick else 5):
        testbed = ClusterTestbed(setup, "cpu")
        measured.append(testbed.measure(task(), placed).costs.phases_ms)
        testbed.close()
        with TemporaryDirectory() as folder:
            profile(Path(folder, "profile"))
            traced.append(traced_sample(trace_files(Path(folder, "profile")), task(), placed, {}).costs.phases_ms)
    shown, ours = (torch.stack(samples).median(dim=0).values for samples in (traced, measured))  # [D, 4]
    shown, ours = (torch.column_stack([phases, phases.sum(1)]) for phases in (shown, ours))  # [D, 5]
    for (p, phase), rank in product(enumerate((*PHASES, "all")), range(RANKS)):
        value, reference = float(shown[rank, p]), float(ours[rank, p])
        yield row(f"{phase}, rank {rank}", value, "ms", reference=reference, more_is_better=True)
    yield row("order of ranks", float(spearmanr(shown[:, -1], ours[:, -1]).statistic), "Spearman")


def lookups(name: str) -> Lookups:
    """Of a step of the job on all ranks."""
    parts = [batch(rank)[name] for rank in range(RANKS)]
    lengths, values = torch.cat([part.lengths() for part in parts]), torch.cat([part.values() for part in parts])
    return Lookups(values.int(), torch.nn.functional.pad(lengths.long().cumsum(0), (1, 0)))
