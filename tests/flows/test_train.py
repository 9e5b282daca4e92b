from dataclasses import replace

import torch

from dreamshard.recipes import RECIPES
from dreamshard.training import TrainingConfig
from dreamshard.workloads import dataset_version
from dreamshard.workloads.task_sampling import EMPTY_SPLIT
from flows.train import known_exchanges, measure_exchanges, start_training
from storage.run_records import checkpoints, trainings
from storage.run_records.checkpoints import iteration_name
from storage.run_records.trainings import TestbedReference, Training
from storage.store import Store
from tests.helpers.tables import pool_of, sample_tasks
from tests.helpers.versions import training_of

POOL = pool_of(24)
DATASET = dataset_version(POOL)


def bench(name: str = "simulated", links: str = "simulated rtx2080ti", num_devices: int = 4, **options):
    made = training_of(hardware=links, testbed=name, dataset=DATASET, num_devices=num_devices).testbed
    return replace(made, **options)


def begun(store: Store, tasks: str, testbed: TestbedReference) -> str:
    """The key of a training on these tasks."""
    key = f"{tasks[:8]}{testbed.num_devices}"
    recipe = replace(RECIPES["smoke"], training=TrainingConfig(iterations=1))
    trainings.write(store, key, Training(recipe=recipe, dataset=DATASET, tasks=tasks, testbed=testbed))
    return key


def draw(store: Store, num_devices: int, devices_per_host: int | None = None) -> str:
    generator = torch.Generator().manual_seed(0)
    tasks = sample_tasks(POOL, 2, 8, num_devices, 2**30, generator, devices_per_host=devices_per_host)
    key = store.lake.write_tasks(tasks, DATASET, "train")
    store.lake.write_table_split(key, EMPTY_SPLIT.with_tables(POOL, POOL.select([])))
    return key


def measured(store: Store, tasks: str, testbed: TestbedReference) -> int:
    return measure_exchanges.fn(store, begun(store, tasks, testbed))


def test_exchanges_missing_in_the_lake_are_measured_once(store):
    first, known = measured(store, draw(store, 4), bench()), known_exchanges(store, bench())
    assert first == len(known) > 6
    assert {sample.exchange.num_devices for sample in known} == {2, 4}
    assert measured(store, draw(store, 4), bench()) == 0
    assert len(known_exchanges(store, bench(num_devices=8))) == first
    assert known_exchanges(store, bench(links="simulated h100")) == []
    more = measured(store, draw(store, 16), bench(exchange_devices=(32,)))
    assert len(known_exchanges(store, bench())) == first + more
    assert measured(store, draw(store, 16, devices_per_host=8), bench()) == 0, "as the hardware has them"
    assert measured(store, draw(store, 16, devices_per_host=2), bench()) > 0


def test_a_testbed_that_cannot_measure_exchanges_changes_nothing(store):
    assert measured(store, draw(store, 2), bench(name="tests.helpers.testbeds:by_count", links="abacus")) == 0
    assert not (store.lake.root / "exchange_samples").exists()


def test_a_training_starts_with_all_exchanges_of_its_hardware(store):
    tasks = draw(store, 4)
    measured(store, tasks, bench(exchange_devices=(32,)))
    key = begun(store, tasks, bench())
    start_training.fn(store, key)
    model = checkpoints.load(store, key, iteration_name(0)).cost_network.exchanges
    assert sorted(set(model.points[:, 0].tolist())) == [2, 4, 32]
    assert int(model.host_devices) == 8
