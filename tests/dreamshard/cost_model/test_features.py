"""What the networks see of a table, and what precision, optimizer and batch size change."""

from dataclasses import replace

import pytest
import torch

from dreamshard.cost_model import Normaliser, PaperCostNetwork, StructuredCostNetwork
from dreamshard.cost_model.cost_network import BACKWARD, DISTINCT_ROWS, FORWARD, VECTORS, work_ratios
from dreamshard.costs import MeasuredOn
from dreamshard.tables import Placement, concatenate
from dreamshard.tasks import PlacementTask, Shards
from tests.helpers.tables import pool_of, roomy_task, shard_sums, tables_of
from tests.helpers.trained import learnt, make_placer

FP32 = MeasuredOn(precision="fp32", optimizer="sgd", batch_size=1000, testbed="", hardware="", num_devices=1)


def ratios_of(tables, *, batch_size=1000, **setting):
    """`[T, 5]` of whole tables, next to fp32 with SGD."""
    task = PlacementTask(tables, 1, 2**40, **{"precision": "fp32", "optimizer": "sgd"} | setting)
    return work_ratios(Shards.of(task, Placement.whole([0] * len(tables), 1)), FP32, batch_size)


def test_a_table_without_lookups_keeps_features_finite():
    pool = tables_of([10, 10], pooling=[0.0, 0.0])
    assert Normaliser.fit(pool)(pool).isfinite().all()
    assert ratios_of(pool, precision="fp16", batch_size=7).isfinite().all()


def test_precision_optimizer_and_batch_change_work_as_the_kernels_of_a_full_device_do():
    cold = tables_of([10**7, 10**7], 64, 10.0, batch_size=1000, bins=[[1.0]] * 2, unique_rows=[10_000] * 2)
    hot = tables_of([10], 64, 10.0, batch_size=1000, bins=[[0.0] * 11 + [1.0]], unique_rows=[10])
    half = ratios_of(cold, precision_of={"t0": "fp16"})
    assert 0.4 < half[0, FORWARD] < 0.8  # outputs and indices stay as they are
    assert half[0, DISTINCT_ROWS] == 0.5
    assert torch.allclose(half[1], torch.tensor(1.0))
    adam = ratios_of(concatenate([cold, replace(hot, names=("hot",))]), optimizer="adam")
    assert (adam[:, FORWARD] == 1).all()
    assert (adam[:2, BACKWARD] > 1.5).all()
    assert adam[2, BACKWARD] < 1.1
    assert 1 < ratios_of(cold, optimizer="rowwise_adagrad")[0, BACKWARD] < adam[0, BACKWARD]
    smaller = ratios_of(cold, batch_size=500)
    assert smaller[0, VECTORS] == 0.5
    assert smaller[0, DISTINCT_ROWS] == pytest.approx(0.5)
    assert ratios_of(hot, batch_size=500)[0, DISTINCT_ROWS] == pytest.approx(1.0, abs=0.01)  # all rows are still hit


def test_half_precision_and_half_the_batch_cost_less():
    placer, task = make_placer(learnt()), roomy_task(pool_of(12, 3))
    placement = Placement.whole(torch.arange(12) % 2, 2)
    measured = placer.cost_network.measured_on
    measured_ms = float(placer.predict(task, placement).overall_ms())
    assert measured_ms == float(placer.predict(replace(task, batch_size=measured.batch_size), placement).overall_ms())
    fp16 = placer.predict(replace(task, precision="fp16"), placement)
    half = placer.predict(replace(task, batch_size=measured.batch_size // 2), placement)
    assert 0.4 * measured_ms < float(fp16.overall_ms()) < measured_ms
    assert 0.4 * measured_ms < float(half.overall_ms()) < 0.7 * measured_ms
    assert torch.equal(fp16.phases_ms[..., 1], placer.predict(task, placement).phases_ms[..., 1])  # vectors stay fp32
    assert (half.phases_ms[..., 1] < fp16.phases_ms[..., 1]).all()


POOL = pool_of(24)
NORMALISER = Normaliser.fit(POOL)


@pytest.fixture(autouse=True)
def _without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def structured():
    return StructuredCostNetwork(NORMALISER)


@pytest.mark.parametrize("network", [structured, PaperCostNetwork])
def test_a_table_far_outside_the_pool_gets_a_finite_prediction(network):
    network, huge = network(), tables_of([10**9], dim=1024, pooling=500.0)
    sums = shard_sums(network.encode(NORMALISER(huge)), torch.zeros(1, 1, dtype=torch.int64), 2)
    assert network.overall_ms(sums).isfinite().all()
