"""Collect costs of shards on one device: `python -m dreamshard.shard_profiling.collect --out FOLDER --seconds N`.

Needs torch, fbgemm, NumPy, PyArrow, tqdm and jaxtyping; no Prefect, MLflow or DuckDB, as on a GPU machine without a
network. Ends when the time is out or the collection is complete; called again with the same options it goes on.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm

from dreamshard.files.locks import measuring
from dreamshard.shard_profiling.dataset import MeasuredShard, ShardWriter, known_indices, utc_now
from dreamshard.shard_profiling.design import (
    CollectionConfig,
    PlannedShard,
    PoolTable,
    collection_pool,
    planned_shards,
    small,
)
from dreamshard.tables import Tables, concatenate
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.fused_op import require_fbgemm
from dreamshard.testbeds.machine import device_model, library_versions
from dreamshard.testbeds.shard_runner import DoesNotFitError, ShardRunner
from dreamshard.workloads import Lookups, Workload, WorkloadConfig, open_workload, statistics

ON_A_GPU_MACHINE = """\
what to do with half an hour of a GPU (torch 2.11, CUDA 13, Python 3.12, no network):
  before  the wheels of fbgemm-gpu 1.6.0 (465 MB), pytest, pluggy, iniconfig, pygments and packaging, if they are not there:
            pip install --no-index --no-deps --no-compile --target ~/site WHEELS; export PYTHONPATH=~/site:$PWD
   2 min  the tests that need a GPU; nothing is worth measuring while one fails:
            python3 -m pytest -m cuda tests/dreamshard/testbeds/test_fused_op.py tests/dreamshard/testbeds/test_emulated.py \\
              tests/dreamshard/testbeds/cluster/test_testbed.py tests/dreamshard/shard_profiling/test_collect.py
   2 min  the first shards, and how fused cost differs from the sum of single tables:
            python3 -m dreamshard.shard_profiling.collect --out costs --seconds 90
            python3 -m dreamshard.shard_profiling.report costs
  20 min  the rest, the most telling first; every shard is kept once it is measured, and a call goes on where one ended:
            python3 -m dreamshard.shard_profiling.collect --out costs --seconds 540
  after   on any machine: the roofline refitted, a placer learnt, both and the data put into the package:
            python -m dreamshard.shard_profiling.publish costs --name h200
"""

AHEAD = 3  # shards whose lookups are drawn while one is measured

Progress = Callable[[int, int, str], None]
"""Told how many shards are known, of how many, and what the last one was."""


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a collection has come to.

    Attributes:
        folder: where the parts lie.
        known: shards measured, by this call and those before.
        measured: by this call.
        infeasible: of these, shards that did not fit.
        complete: whether nothing is left to measure.
        hardware: model of the device.
    """

    folder: str
    known: int
    measured: int
    infeasible: int
    complete: bool
    hardware: str


class PoolLookups:
    """Lookups of the pool's tables with their statistics, drawn ahead in threads; a `LookupSource`."""

    def __init__(self, pool: Sequence[PoolTable], config: CollectionConfig, workers: int) -> None:
        self._tables = {table.name: table for table in pool}
        self._config = config
        self._workloads: dict[str, Workload] = {}
        self._described: dict[str, Tables] = {}
        self._drawing: dict[str, Future[tuple[Lookups, Tables]]] = {}
        self._threads = ThreadPoolExecutor(workers)
        self._turn = threading.Condition()
        self._running, self._quiet = 0, False

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Draw nothing while inside: a thread that holds the interpreter between two launches is timed as the device's."""
        with self._turn:
            self._quiet = True
            self._turn.wait_for(lambda: self._running == 0)
        try:
            yield
        finally:
            with self._turn:
                self._quiet = False
                self._turn.notify_all()

    def ahead(self, names: Sequence[str]) -> None:
        """Begin to draw the lookups of tables that have not been used yet."""
        for name in names:
            if name not in self._described and name not in self._drawing:
                self._drawing[name] = self._threads.submit(self._draw, name, self._workload(name))

    def described(self, name: str, dim: int) -> Tables:
        """The table with its statistics, `dim` wide."""
        if name not in self._described:
            self.ahead([name])
            self._described[name] = self._drawing[name].result()[1]
        return replace(self._described[name], dim=torch.tensor([dim]))

    def __call__(self, name: str) -> Lookups:
        """The lookups; drawn again where the device gave them up."""
        drawn = self._drawing.pop(name, None)
        return self._draw(name, self._workload(name))[0] if drawn is None else drawn.result()[0]

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)

    def _workload(self, name: str) -> Workload:
        source = self._tables[name].source
        if source not in self._workloads:
            given = WorkloadConfig(source=source, batch_size=self._config.batch_size, dim=4, seed=self._config.seed)
            self._workloads[source] = open_workload(given)
        return self._workloads[source]

    def _draw(self, name: str, workload: Workload) -> tuple[Lookups, Tables]:
        with self._turn:
            self._turn.wait_for(lambda: not self._quiet)
            self._running += 1
        try:
            table = workload.table(self._tables[name].position)
            return table.lookups, statistics(replace(table, name=name))
        finally:
            with self._turn:
                self._running -= 1
                self._turn.notify_all()


def collect(
    folder: Path,
    config: CollectionConfig,
    *,
    seconds: float,
    device_type: Literal["cpu", "cuda"],
    workers: int = 2,
    progress: Progress | None = None,
) -> Collected:
    """Measure shards in the design's order until the time is out; each is on disk once it is measured.

    Args:
        folder: of the parts; what an earlier call measured is not measured again.
        seconds: after which no shard is begun, but for the first.
        device_type: of the one device.
        workers: threads that draw lookups.
        progress: told after each shard.

    Raises:
        ValueError: the folder holds another collection, there is no such device, or fbgemm is not installed.
    """
    began = time.monotonic()
    require_fbgemm()
    if device_type == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no GPU that torch can use, so nothing can be measured on one; give --device cpu")
    known = known_indices(folder, config.design)
    pool = collection_pool(config)
    plan = [shard for shard in islice(planned_shards(pool, config), config.num_shards) if shard.index not in known]
    lookups = PoolLookups(pool, config, workers)
    writer, measured, infeasible = ShardWriter(folder), 0, 0
    runner = ShardRunner(_setup(config, lookups), torch.device(device_type))
    try:
        for position, planned in enumerate(plan):
            if measured and time.monotonic() - began >= seconds:
                break
            for coming in plan[position : position + 1 + AHEAD]:
                lookups.ahead([pool[t].name for t in coming.tables])
            shard = _measure(runner, planned, pool, lookups, config)
            writer.add(shard)
            measured += 1
            infeasible += shard.forward_ms is None
            if progress is not None:
                progress(len(known) + measured, config.num_shards, _told(shard))
    finally:
        lookups.close()
    return Collected(
        folder=str(folder),
        known=len(known) + measured,
        measured=measured,
        infeasible=infeasible,
        complete=measured == len(plan),
        hardware=device_model(device_type),
    )


def default_device() -> Literal["cpu", "cuda"]:
    """A GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; prints what was collected as JSON."""
    given = _parser().parse_args(arguments)
    base = CollectionConfig(seed=given.seed)
    if given.small:
        base = small(base)
    changes = {"batch_size": given.batch_size, "num_shards": given.max_shards, "precision": given.precision}
    changes |= {"optimizer": given.optimizer, "repeats": given.repeats}
    changes["memory_bytes"] = None if given.memory_gb is None else round(given.memory_gb * 2**30)
    config = replace(base, **{name: value for name, value in changes.items() if value is not None})
    with tqdm(total=config.num_shards, unit="shard", disable=given.quiet) as bar:

        def progress(done: int, total: int, what: str) -> None:
            bar.total = total
            bar.set_postfix_str(what, refresh=False)
            bar.update(done - bar.n)

        outcome = collect(
            given.out,
            config,
            seconds=given.seconds,
            device_type=given.device or default_device(),
            workers=given.workers,
            progress=progress,
        )
    sys.stdout.write(json.dumps(vars(outcome)) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dreamshard.shard_profiling.collect",
        description=(__doc__ or "").splitlines()[0],
        epilog=ON_A_GPU_MACHINE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the parts; goes on with what it holds")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to end")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda if there is one")
    parser.add_argument("--small", action="store_true", help="small tables and batch, for a machine without a GPU")
    parser.add_argument("--max-shards", type=int, help="at which the collection is complete")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--memory-gb", type=float, help="of one shard at most, GiB")
    parser.add_argument("--precision", choices=["fp16", "fp32"])
    parser.add_argument("--optimizer", choices=["sgd", "rowwise_adagrad"])
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4, help="threads that draw lookups")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def _setup(config: CollectionConfig, lookups: PoolLookups) -> TestbedSetup:
    return TestbedSetup(
        num_devices=1,
        batch_size=config.batch_size,
        lookups=lookups,
        seed=config.seed,
        warmups=config.warmups,
        repeats=config.repeats,
    )


def _measure(
    runner: ShardRunner,
    planned: PlannedShard,
    pool: Sequence[PoolTable],
    lookups: PoolLookups,
    config: CollectionConfig,
) -> MeasuredShard:
    pairs = zip(planned.tables, planned.dims, strict=True)
    tables = concatenate([lookups.described(pool[t].name, dim) for t, dim in pairs])
    costs, misfit = None, None
    try:
        with measuring():
            costs = runner.measure(tables, config.precision, config.optimizer, lookups.quiet)
    except DoesNotFitError as error:
        misfit = error
    return MeasuredShard(
        design=config.design,
        index=planned.index,
        alone_of=planned.alone_of,
        tables=tables,
        batch_size=config.batch_size,
        precision=config.precision,
        optimizer=config.optimizer,
        forward_ms=None if costs is None else costs.forward_ms,
        backward_ms=None if costs is None else costs.backward_ms,
        spread_ms=0.0 if costs is None else costs.spread_ms,
        repeats=0 if costs is None else costs.repeats,
        clock=runner.clock.name,
        asked_bytes=None if misfit is None else misfit.asked_bytes,
        free_bytes=None if misfit is None else misfit.free_bytes,
        hardware=device_model(runner.device.type),
        versions=library_versions(),
        measured_at=utc_now(),
    )


def _told(shard: MeasuredShard) -> str:
    if shard.forward_ms is None or shard.backward_ms is None:
        return f"{len(shard.tables)} tables did not fit"
    return f"{len(shard.tables)} tables {shard.forward_ms:.3g} + {shard.backward_ms:.3g} ms"


if __name__ == "__main__":
    main()
