"""How tables are split into those of training and held-out tasks, and how tasks are drawn from them."""

from dataclasses import dataclass
from typing import Literal

import torch

from dreamshard.files import gib
from dreamshard.tables import Optimizer, Precision, Tables
from dreamshard.tasks import PlacementTask

Mode = Literal["auto", "fixed", "pool"]
"""Training is on one fixed model, or for unseen models whose tables are like a pool's. `recipes.sized` decides `auto`."""

_DRAWS_PER_TASK = 20  # before a pool counts as having no more distinct tasks


@dataclass(frozen=True, kw_only=True)
class TasksConfig:
    """Placement tasks.

    Attributes:
        mode: `pool` draws tasks from the two sides of a table split; `fixed` takes all tables as one model, and variants.
        devices_per_host: None for as many as the hardware has.
        reserve_bytes: of `memory_bytes`, kept free for dense parameters and activations.
        num_train: tasks to train on; with a fixed model, variants of it.
        num_test: held-out tasks; with a fixed model, variants of it.
    """

    mode: Mode = "auto"
    tables_per_task: int = 20
    num_devices: int = 2
    devices_per_host: int | None = None
    memory_bytes: int = 2 * 2**30
    reserve_bytes: int = 0
    num_train: int = 50
    num_test: int = 30
    precision: Precision = "fp32"
    optimizer: Optimizer = "sgd"

    def task(self, tables: Tables, name: str) -> PlacementTask:
        """The task of these tables; raises like `PlacementTask`."""
        sizes = self.num_devices, self.memory_bytes
        return PlacementTask(tables, *sizes, self.precision, self.optimizer, name, self.devices_per_host)

    def sample(self, pool: Tables, count: int, generator: torch.Generator, name: str = "task") -> list[PlacementTask]:
        """At most `count` tasks of distinct sets of tables, as many as a pool has; task `i` is called `{name}-{i:03}`.

        Raises:
            ValueError: the pool is smaller than a task, or a table exceeds a device: training places whole tables.
        """
        size = self.tables_per_task
        if size > len(pool):
            raise ValueError(
                f"a task of {size} tables cannot be drawn from a pool of {len(pool)}; ask for fewer tables per task, or "
                "ingest a larger workload"
            )
        tasks: dict[frozenset[int], PlacementTask] = {}
        for _ in range(_DRAWS_PER_TASK * count):
            drawn = torch.randperm(len(pool), generator=generator)[:size].tolist()
            if frozenset(drawn) in tasks:
                continue
            task = self.task(pool.select(drawn), f"{name}-{len(tasks):03}")
            size_bytes, largest = map(int, task.table_bytes.max(dim=0))
            if size_bytes > self.memory_bytes:
                raise ValueError(
                    f"table {task.tables.names[largest]!r} needs {gib(size_bytes)}, and a device has "
                    f"{gib(self.memory_bytes)}, but training places whole tables; give devices more memory, or leave "
                    "such tables out (max_table_bytes)"
                )
            tasks[frozenset(drawn)] = task
            if len(tasks) == count:
                break
        return list(tasks.values())


@dataclass(frozen=True)
class TableSplit:
    """Names of training and held-out tables of all datasets so far; a table never changes sides."""

    train: frozenset[str] = frozenset()
    test: frozenset[str] = frozenset()

    def with_tables(self, train: Tables, test: Tables) -> "TableSplit":
        """This split extended by the tables of another dataset; tables that are gone stay in it."""
        return TableSplit(self.train | set(train.names), self.test | set(test.names))

    def divide(self, pool: Tables) -> tuple[Tables, Tables]:
        """Training and test tables of `pool`, all of whose names are in the split, each in the pool's order."""
        train = [name for name in pool.names if name in self.train]
        return pool.named(train), pool.named([name for name in pool.names if name not in self.train])


EMPTY_SPLIT = TableSplit()


def split_tables(pool: Tables, generator: torch.Generator, earlier: TableSplit = EMPTY_SPLIT) -> tuple[Tables, Tables]:
    """Split the pool evenly into training and test tables, each in the pool's order, both with light and heavy ones.

    The pool's new tables are put into strata of similar lookups x dim, and one of each is drawn to train on.

    Args:
        generator: draws the split; the number of draws does not depend on `earlier`.
        earlier: tables in it keep their side, so no training table is ever held out. New tables even the sides out.
    """
    draws = torch.rand(len(pool), generator=generator)
    train, known = [name for name in pool.names if name in earlier.train], earlier.train | earlier.test
    by_work = (pool.pooling_factor * pool.dim).argsort(stable=True).tolist()
    new = [t for t in by_work if pool.names[t] not in known]
    wanted = min(len(new), max(0, len(pool) // 2 - len(train)))
    strata = [new[k * len(new) // wanted : (k + 1) * len(new) // wanted] for k in range(wanted)]
    drawn = [pool.names[min(stratum, key=draws.__getitem__)] for stratum in strata]
    return TableSplit(frozenset(train + drawn)).divide(pool)
