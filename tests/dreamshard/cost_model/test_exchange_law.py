"""How long all-to-alls take by bytes and topology."""

import numpy as np
import pytest

from dreamshard.cost_model.exchange_law import Curve, Topology, fit_link, law_ms, link_inputs

SIZES = np.geomspace(1e4, 1e9, 12)


def weights_of(measured: dict[Topology, np.ndarray], kind: str) -> np.ndarray:
    inputs = [link_inputs(getattr(shape, kind), shape.num_devices - 1, SIZES) for shape in measured]
    return fit_link(np.concatenate(inputs), np.concatenate(list(measured.values())))


def test_hosts_of_none_are_the_hardwares_or_one_for_all():
    assert Topology.of(64, None, 8) == Topology(64, 8)
    assert Topology.of(64, 4, 8) == Topology(64, 4)
    assert Topology.of(4, None, 8) == Topology(4, 4)
    assert Topology.of(64, None, None) == Topology(64, 64)
    assert (Topology(64, 8).near, Topology(64, 8).far) == (7, 56)


def test_a_law_fitted_to_few_devices_holds_for_more():
    def true_ms(shape: Topology) -> np.ndarray:
        return 0.02 + 0.001 * shape.near + 4e-9 * SIZES * shape.near / (shape.num_devices - 1)

    host = weights_of({shape: true_ms(shape) for shape in (Topology(2, 2), Topology(4, 4), Topology(6, 6))}, "near")
    found = [law_ms(np.stack([host, 0 * host]), Topology(8, 8), size) for size in SIZES]
    assert found == pytest.approx(true_ms(Topology(8, 8)), rel=0.01)


def test_the_slower_of_host_and_network_counts():
    weights = np.zeros((2, 4))
    weights[0, 2], weights[1, 2] = 1.0, 10.0
    assert law_ms(weights, Topology(2, 2), 6.0) == 6.0
    assert law_ms(weights, Topology(4, 2), 6.0) == pytest.approx(10.0 * 6.0 * 2 / 3)
    assert law_ms(weights, Topology(101, 100), 100.0) == pytest.approx(99.0)


def test_no_weight_of_a_law_is_negative():
    falling = np.geomspace(2.0, 1.0, len(SIZES))
    assert (weights_of({Topology(4, 4): falling}, "near") >= 0).all()


def test_a_curve_never_falls_and_meets_what_was_measured():
    measured = 0.02 + 1e-8 * SIZES**0.9
    curve = Curve(SIZES[::-1].copy(), measured[::-1].copy())
    assert [curve(size) for size in SIZES] == pytest.approx(measured)
    noisy = Curve(SIZES, measured * (1 + 0.3 * np.sin(np.arange(len(SIZES)))))
    found = [noisy(size) for size in np.geomspace(1e3, 1e10, 200)]
    assert (np.diff(found) >= -1e-12).all()
    assert min(found) >= 0
