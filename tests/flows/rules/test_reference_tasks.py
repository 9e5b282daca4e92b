"""Tasks that all versions of a topology are measured on exist for any number of devices and any memory."""

import pytest

from dreamshard.workloads import open_workload
from dreamshard.workloads.task_sampling import TasksConfig
from flows.rules.reference_tasks import reference_tasks, reference_workload
from tests.helpers.tables import tables_of

GIB = 2**30


@pytest.mark.parametrize(
    ("num_devices", "memory_bytes", "tables_in_task"),
    [(1, 80 * GIB, 10), (64, 80 * GIB, 313), (64, GIB // 8, 42), (1, 2**20, 4)],
)
def test_there_are_three_tasks_whatever_the_devices(num_devices: int, memory_bytes: int, tables_in_task: int):
    workload = reference_workload(num_devices, memory_bytes, is_gpu=True)
    names = open_workload(workload).names
    assert len(names) == workload.num_tables
    rows = workload.max_table_bytes // (128 * 4)  # as large as a table may be
    pool = tables_of([max(1, rows)] * len(names), 128, 1.0, names=names)
    config = TasksConfig(num_devices=num_devices, memory_bytes=memory_bytes, optimizer="rowwise_adagrad")
    tasks = reference_tasks(pool, config)
    assert [len(task.tables) for task in tasks] == [tables_in_task] * 3
    assert len({task.tables.names for task in tasks}) == 3
