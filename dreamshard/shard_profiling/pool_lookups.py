"""Lookups of the collection's tables, drawn in threads while other shards are measured."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import torch

from dreamshard.shard_profiling.design import CollectionConfig, PoolTable
from dreamshard.tables import Tables
from dreamshard.workloads import Lookups, Workload, WorkloadConfig, open_workload, statistics


class PoolLookups:
    """A `LookupSource` for the pool's tables that also gives their statistics."""

    def __init__(self, pool: Sequence[PoolTable], config: CollectionConfig, workers: int) -> None:
        self._tables = {table.name: table for table in pool}
        self._config = config
        self._workloads: dict[str, Workload] = {}
        self._statistics: dict[str, Tables] = {}
        self._draws: dict[str, Future[tuple[Lookups, Tables]]] = {}
        self._threads = ThreadPoolExecutor(workers)
        self._changed = threading.Condition()
        self._running, self._paused = 0, False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Draw nothing inside the block: a thread that holds the interpreter would add to the device's measured time."""
        with self._changed:
            self._paused = True
            self._changed.wait_for(lambda: self._running == 0)
        try:
            yield
        finally:
            with self._changed:
                self._paused = False
                self._changed.notify_all()

    def prefetch(self, names: Sequence[str]) -> None:
        """Start to draw the lookups of tables that have not been used yet."""
        for name in names:
            if name not in self._statistics and name not in self._draws:
                self._draws[name] = self._threads.submit(self._draw, name, self._workload(name))

    def table(self, name: str, dim: int) -> Tables:
        """The table with its statistics, `dim` wide."""
        if name not in self._statistics:
            self.prefetch([name])
            self._statistics[name] = self._draws[name].result()[1]
        return replace(self._statistics[name], dim=torch.tensor([dim]))

    def __call__(self, name: str) -> Lookups:
        """The table's lookups; later calls draw them again."""
        drawn = self._draws.pop(name, None)
        return self._draw(name, self._workload(name))[0] if drawn is None else drawn.result()[0]

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)

    def _workload(self, name: str) -> Workload:
        source = self._tables[name].source
        if source not in self._workloads:
            config = WorkloadConfig(source=source, batch_size=self._config.batch_size, dim=4, seed=self._config.seed)
            self._workloads[source] = open_workload(config)
        return self._workloads[source]

    def _draw(self, name: str, workload: Workload) -> tuple[Lookups, Tables]:
        with self._changed:
            self._changed.wait_for(lambda: not self._paused)
            self._running += 1
        try:
            table = workload.table(self._tables[name].position)
            return table.lookups, statistics(replace(table, name=name))
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()
