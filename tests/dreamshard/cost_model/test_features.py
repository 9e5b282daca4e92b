"""What the networks see of a table, and what precision, optimizer and batch size change."""

from dataclasses import replace

import pytest
import torch

from dreamshard.cost_model import Normaliser, PaperCostNetwork, StructuredCostNetwork
from dreamshard.cost_model.compiled import WIDE
from dreamshard.cost_model.features import BACKWARD, BATCH, DISTINCT_ROWS, FORWARD, NUM_FEATURES, features, work_ratios
from dreamshard.costs import MeasuredOn
from dreamshard.placement import Placement
from dreamshard.shards import Shards
from dreamshard.tables import concatenate
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import pool_of, roomy_task, shard_sums, tables_of
from tests.helpers.trained import learnt, make_placer

FP32 = MeasuredOn(precision="fp32", optimizer="sgd", batch_size=1000, testbed="", hardware="", num_devices=1)


def test_the_first_features_are_the_papers_21():
    seen = features(tables_of([100], dim=8, pooling=3.0))[0]
    assert seen[:21].tolist() == [8, 100, 3, 800, 0, 1, *[0] * 15]
    assert seen.shape == (NUM_FEATURES,)


def test_a_table_looks_the_same_in_every_task():
    pool = pool_of(40)
    normaliser = Normaliser.fit(pool)
    assert torch.equal(normaliser(pool.select([7, 3]))[1], normaliser(pool)[3])
    seen = normaliser(pool).double()
    varied = seen.abs().sum(0) > 1e-3
    assert torch.allclose(seen.mean(0), torch.zeros(NUM_FEATURES, dtype=torch.float64), atol=1e-4)
    assert torch.allclose(seen[:, varied].std(0, correction=0), torch.ones(1, dtype=torch.float64), atol=1e-3)


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
    assert smaller[0, BATCH] == 0.5
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
DEVICE = torch.arange(24) % 3


@pytest.fixture(autouse=True)
def _without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def structured():
    return StructuredCostNetwork(NORMALISER)


def of_devices(network, latents, device, num_devices=3):
    return network.phases_ms(shard_sums(latents, device[None], num_devices))[0]  # [D, 4]


both = pytest.mark.parametrize("network", [structured, PaperCostNetwork])


@both
def test_a_prediction_depends_on_devices_not_on_table_order(network):
    network, order, names = network(), torch.randperm(24), torch.tensor([2, 0, 1])
    latents = network.encode(NORMALISER(POOL))
    before = of_devices(network, latents, DEVICE)
    assert torch.allclose(of_devices(network, latents[order], DEVICE[order]), before, rtol=1e-5)
    assert torch.allclose(of_devices(network, latents, names[DEVICE])[names], before, rtol=1e-5)


@both
def test_a_table_far_outside_the_pool_gets_a_finite_prediction(network):
    network, huge = network(), tables_of([10**9], dim=1024, pooling=500.0)
    sums = shard_sums(network.encode(NORMALISER(huge)), torch.zeros(1, 1, dtype=torch.int64), 2)
    assert network.overall_ms(sums).isfinite().all()


def test_a_network_tells_a_narrow_table_by_a_wide_one():
    network, tables = structured(), tables_of([1000, 1000, 1000, 1000], dim=[32, 36, 68, 256])
    latents = network.encode(NORMALISER(tables))  # [4, L]
    wide = slice(WIDE, WIDE + 2)
    assert latents[:, wide].tolist() == [[0, 0], [1, 0], [1, 1], [1, 1]]
    devices = torch.stack([latents[0], latents[0] + latents[3]])[None]  # [1, 2, L]
    before = network.phases_ms(devices)[0][:, [0, 3]]
    network.exponent[:, -2:] = 0.1
    after = network.phases_ms(devices)[0][:, [0, 3]]
    assert torch.equal(after[0], before[0])
    assert (after[1] > before[1]).all()
