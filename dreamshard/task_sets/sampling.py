"""How tables are split into those of training and held-out tasks, and how tasks are drawn from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dreamshard.files.text import gib
from dreamshard.tables import Optimizer, Precision, Tables
from dreamshard.tasks import PlacementTask

_DRAWS_PER_TASK = 20  # before a pool counts as having no more distinct tasks


@dataclass(frozen=True)
class TableSplit:
    """Names of training and held-out tables of all datasets so far; a table never changes sides."""

    train: frozenset[str]
    test: frozenset[str]

    def with_tables(self, train: Tables, test: Tables) -> "TableSplit":
        """This split extended by the tables of another dataset; tables that are gone stay in it."""
        return TableSplit(self.train | set(train.names), self.test | set(test.names))

    def divide(self, pool: Tables) -> tuple[Tables, Tables]:
        """Training and test tables of `pool`, all of whose names are in the split, each in the pool's order."""
        return _divide(pool, {t for t, name in enumerate(pool.names) if name in self.train})


EMPTY_SPLIT = TableSplit(frozenset(), frozenset())


def split_tables(pool: Tables, generator: torch.Generator, earlier: TableSplit = EMPTY_SPLIT) -> tuple[Tables, Tables]:
    """Split the pool evenly into training and test tables, each in the pool's order.

    Args:
        generator: draws the split; the number of draws does not depend on `earlier`.
        earlier: tables in it keep their side, so no training table is ever held out. New tables even the sides out as far
            as that allows.
    """
    order = torch.randperm(len(pool), generator=generator)
    train = {t for t, name in enumerate(pool.names) if name in earlier.train}
    assigned = train | {t for t, name in enumerate(pool.names) if name in earlier.test}
    new = [t for t in order.tolist() if t not in assigned]
    return _divide(pool, train | set(new[: max(0, len(pool) // 2 - len(train))]))


def _divide(pool: Tables, train: set[int]) -> tuple[Tables, Tables]:
    return pool.select(sorted(train)), pool.select(sorted(set(range(len(pool))) - train))


def sample_tasks(
    pool: Tables,
    num_tasks: int,
    tables_per_task: int | Sequence[int],
    num_devices: int,
    memory_bytes: int,
    generator: torch.Generator,
    *,
    precision: Precision = "fp32",
    optimizer: Optimizer = "sgd",
    name: str = "task",
    devices_per_host: int | None = None,
) -> list[PlacementTask]:
    """Tasks of distinct tables drawn from `pool`; task `i` is called `{name}-{i:03}`.

    Args:
        tables_per_task: one size for all tasks, or sizes to draw from.

    Returns:
        No two tasks have the same tables, so there are fewer than `num_tasks` where a small pool has no more to draw.

    Raises:
        ValueError: the pool is smaller than a task, or a table of a task exceeds a device: training and evaluation place
            whole tables.
    """
    sizes = [tables_per_task] if isinstance(tables_per_task, int) else list(tables_per_task)
    if max(sizes) > len(pool):
        raise ValueError(
            f"a task of {max(sizes)} tables cannot be drawn from a pool of {len(pool)}; each table occurs once in a "
            "task, so ask for fewer tables per task or ingest a larger workload"
        )
    tasks: list[PlacementTask] = []
    seen: set[frozenset[int]] = set()
    for _ in range(_DRAWS_PER_TASK * num_tasks):
        if len(tasks) == num_tasks:
            break
        size = sizes[int(torch.randint(len(sizes), (), generator=generator))]
        drawn = torch.randperm(len(pool), generator=generator)[:size]
        if frozenset(drawn.tolist()) in seen:
            continue
        seen.add(frozenset(drawn.tolist()))
        label = f"{name}-{len(tasks):03}"
        tables = pool.select(drawn)
        task = PlacementTask(tables, num_devices, memory_bytes, precision, optimizer, label, devices_per_host)
        largest = int(task.table_bytes.argmax())
        if int(task.table_bytes[largest]) > memory_bytes:
            raise ValueError(
                f"table {task.tables.names[largest]!r} of {task.name} needs {gib(int(task.table_bytes[largest]))}, more "
                f"than the {gib(memory_bytes)} of a device, but training and evaluation place whole tables; "
                "give devices more memory, or leave such tables out of the workload (max_table_bytes)"
            )
        tasks.append(task)
    return tasks
