"""Fixed tasks on which all versions of one topology are measured, so that their costs are comparable.

Tables are Meta's of 2022, which no recipe trains on, so every version of any source can place them and none has seen them.
They are small compared to the devices' memory: any later version fits, and measuring them is cheap.
"""

from dataclasses import replace

import torch

from dreamshard.tables import DEFAULT_BATCH, Tables
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import WorkloadConfig, open_workload
from dreamshard.workloads.task_sampling import TasksConfig

RULE = "lookup_greedy"
"""The rule of thumb that is measured with each version: its placements never change, so its cost shows drift."""

_COUNT = 3
_TABLES_PER_DEVICE = 5
_FEWEST_TABLES, _MOST_TABLES = 10, 320  # of a task
_MEMORY_SHARE = 32  # a table takes at most this part of a device as fp32 weights, so that optimizer states fit too
_MOST_BYTES = 2**28
_CPU_BATCH = 2048


def reference_workload(num_devices: int, memory_bytes: int, *, is_gpu: bool) -> WorkloadConfig:
    """The tables that reference tasks are drawn from; no recipe changes them.

    There are half as many again as a task takes, or as many as are small enough: many or small devices get smaller tasks.

    Args:
        memory_bytes: room for tables on each device.
        is_gpu: whether devices are GPUs, or models of them, which take larger batches.
    """
    small = WorkloadConfig(
        source="meta-dlrm-2022",
        max_table_bytes=max(1, min(_MOST_BYTES, memory_bytes // _MEMORY_SHARE)),
        batch_size=DEFAULT_BATCH if is_gpu else _CPU_BATCH,
        seed=2_022_001,
    )
    return replace(small, num_tables=min(3 * _tables_per_task(num_devices) // 2, len(open_workload(small).names)))


def reference_tasks(pool: Tables, config: TasksConfig) -> list[PlacementTask]:
    """Draw tasks from a pool of `reference_workload`; `config` gives the topology, not the number of tables."""
    drawn = max(1, min(_tables_per_task(config.num_devices), 2 * len(pool) // 3))  # fewer than there are: tasks differ
    generator = torch.Generator().manual_seed(1)
    return replace(config, tables_per_task=drawn).sample(pool, _COUNT, generator, "reference")


def _tables_per_task(num_devices: int) -> int:
    return min(_MOST_TABLES, max(_FEWEST_TABLES, _TABLES_PER_DEVICE * num_devices))
