"""What driving a thousand ranks costs the process that does."""

import pytest

from tests.benchmarks.bench_driver import BAR_S, NUM_RANKS, PER_HOST, light_cluster, measurement_cpu_s

pytestmark = [pytest.mark.processes, pytest.mark.long]


def test_a_measurement_on_a_thousand_ranks_costs_the_driver_less_than_two_seconds():
    with light_cluster(NUM_RANKS) as bed:
        assert bed.layout.pattern == [PER_HOST] * (NUM_RANKS // PER_HOST)
        assert measurement_cpu_s(bed, NUM_RANKS, measurements=1) < BAR_S
