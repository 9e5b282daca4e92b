"""What a cost network knows of all-to-alls of any number of devices and hosts."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch

from dreamshard.cost_model import CostData, Normaliser
from dreamshard.cost_model.compiled import DIMS
from dreamshard.cost_model.exchanges import ExchangeModel, ExchangeShape, comm_inputs, designed_exchanges, exchanges_for
from dreamshard.cost_model.structured import StructuredCostNetwork
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.policy.mdp import PolicyNetwork
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import Placement
from dreamshard.tasks import PlacementTask
from tests.helpers.samples import sample_of_phases
from tests.helpers.tables import pool_of
from tests.helpers.testbeds import simulated

V100 = PRESETS["v100"]
BATCH = 65_536
POOL = pool_of(24)


def exchanges(*counts: int, devices_per_host: int | None = None, most_bytes: int = 2**30, noise: float = 0.0):
    designed = designed_exchanges(counts, devices_per_host, most_bytes)
    return [simulated(noise, spec=V100).measure_exchange(exchange) for exchange in designed]


def task(num_devices: int, **more) -> PlacementTask:
    return PlacementTask(POOL, num_devices, 2**33, **more)


def placements(num_devices: int, count: int = 12, noise: float = 0.0):
    draws = torch.randint(num_devices, (count, len(POOL)), generator=torch.Generator().manual_seed(0))
    return [
        simulated(noise, spec=V100).measure(task(num_devices), Placement.whole(draw, num_devices)) for draw in draws
    ]


def network(*samples, learnt=()) -> StructuredCostNetwork:
    fitted = StructuredCostNetwork(Normaliser.fit(POOL))
    fitted.exchanges.learn_exchanges(learnt)
    fitted.exchanges.learn_placements(data := data_of(samples), data.sums(fitted.encode)[..., DIMS].detach())
    return fitted


def data_of(samples) -> CostData:
    return CostData.of(samples, Normaliser.fit(POOL))


@pytest.mark.parametrize(
    ("count", "learnt", "wanted", "rel"),
    [(4, (32,), 32, 0.02), (4, (32,), 4, 1e-4), (4, (2, 4, 8, 16, 32), 128, 0.03), (1, (16,), 16, 0.02)],
)
def test_placements_and_exchanges_predict_placements(count, learnt, wanted, rel):
    fitted, [sample] = network(*placements(count), learnt=exchanges(*learnt)), placements(wanted, 1)
    measured = torch.stack([sample.costs.phases_ms[..., 1], sample.costs.phases_ms[..., 2]], dim=1)
    with torch.no_grad():
        sums = data_of([sample]).sums(fitted.encode)
        predicted = fitted.for_task(sample.task).phases_ms(sums)[0, :, 1:3]
    torch.testing.assert_close(predicted, measured, rtol=rel, atol=0)


def test_hosts_of_a_task_decide_how_much_crosses_the_network():
    learnt = [*exchanges(2, 4, 8), *exchanges(16, devices_per_host=8), *exchanges(16, devices_per_host=2)]
    fitted = network(*placements(4), learnt=learnt)
    wide, narrow, default = (fitted.for_task(task(16, devices_per_host=hosts)).comm_ms for hosts in (8, 2, None))
    assert (narrow[:, 2] > 1.3 * wide[:, 2]).all()
    assert torch.equal(default, wide)  # the hardware's own
    apart = network(*placements(4), learnt=exchanges(8, devices_per_host=1)).for_task(task(16, devices_per_host=16))
    assert (apart.comm_ms.sum(1) > 0).all()  # no link is free because none like it was measured


def by_neighbours(dims):
    return 1 + dims + 0.5 * dims.roll(1) + 2 * (dims + dims.roll(1)).amax()


@pytest.mark.parametrize(("comm_ms", "shared"), [(by_neighbours, True), (lambda dims: 1 + dims + dims.amax(), False)])
@torch.no_grad()
def test_links_that_neighbours_share_are_learnt_despite_bursts_and_avoided(comm_ms, shared):
    generator, samples = torch.Generator().manual_seed(0), []
    for number in range(40):
        device = torch.randint(4, (len(POOL),), generator=generator)
        dims = torch.zeros(4).index_add_(0, device, POOL.dim.float()) / 100
        burst = 1.4 if number % 8 == 0 else 1.0
        noisy = burst * comm_ms(dims) * (1 + 0.01 * torch.randn(4, generator=generator))
        phases = torch.stack([torch.ones(4), noisy, noisy, torch.ones(4)], dim=1).double()
        samples.append(sample_of_phases(task(4), Placement.whole(device, 4), phases))
    fitted = network(*samples)
    assert (fitted.exchanges.fitted_ms[:, 4:] > 0).any(1).tolist() == [shared, shared]
    predicted = comm_inputs(dims) @ fitted.exchanges.fitted_ms[0]
    torch.testing.assert_close(predicted, comm_ms(dims), rtol=0.02, atol=0)
    fitted.scale_ms *= 1e-3
    placer = DreamShardPlacer(fitted, PolicyNetwork(), Normaliser.fit(POOL), columns=False)
    uneven = replace(task(4), tables=POOL.select(range(6)))
    device = placer.place(uneven).device
    renamed = [Placement.whole(torch.tensor(names)[device], 4) for names in permutations(range(4))]
    first, *others = (float(placer.predict(uneven, placement).overall_ms()) for placement in renamed)
    assert first <= min(others) * 1.0001
    assert (max(others) > first * 1.01) == shared


def test_weights_are_never_negative():
    model = ExchangeModel()
    model.learn_exchanges(exchanges(8, 16, noise=0.3))
    model.batch_size = torch.tensor(BATCH)
    for shape in (ExchangeShape(8, 8), ExchangeShape(16, 8), ExchangeShape(64, 8)):
        assert all((model.weights_ms(shape, dims) >= 0).all() for dims in (1.0, 100.0, 1e4, 1e6))


def test_designed_exchanges_cover_powers_of_two_devices():
    designed = exchanges_for([task(6, devices_per_host=2), task(3, devices_per_host=2)], 16, more_devices=[9])
    assert {exchange.num_devices for exchange in designed} == {2, 4, 6, 9}
    assert {exchange.devices_per_host for exchange in designed} == {2}
    sizes = [exchange.sent_bytes.tolist() for exchange in designed_exchanges([2], None, 2**20)]
    assert sizes == [[2**14 * 3**power] * 2 for power in range(5)]
    assert exchanges_for([task(1)], 16) == []
