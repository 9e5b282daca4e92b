import pytest

from dreamshard.testbeds.layout import Layout, Rank


def rank(number: int, host: str, gpu: str | None = None) -> Rank:
    return Rank(number, host, "Ceres x8", gpu)


def two_hosts(per_host: int) -> Layout:
    return Layout.of([rank(r, "ab"[r // per_host], "NVIDIA H100") for r in range(2 * per_host)])


def test_ranks_dealt_out_in_turn_become_devices_host_by_host():
    layout = Layout.of([rank(r, "ab"[r % 2]) for r in range(4)])
    assert layout.numbers == (0, 2, 1, 3)
    assert layout.devices_per_host == layout.part(3).devices_per_host == 2


def test_only_the_last_host_may_have_fewer_ranks():
    layout = Layout.of([rank(0, "small"), *(rank(r, "large") for r in range(1, 4))])
    assert [each.host for each in layout.ranks] == ["large"] * 3 + ["small"]
    with pytest.raises(ValueError):
        Layout.of([rank(r, host) for r, host in enumerate("aaabbc")])


@pytest.mark.parametrize(
    ("num_devices", "per_host", "numbers"),
    [(6, None, (0, 1, 2, 3, 4, 5)), (4, 2, (0, 1, 4, 5)), (2, 1, (0, 4)), (3, 8, (0, 1, 2))],
)
def test_a_task_takes_as_many_ranks_of_each_host_as_it_asks_for(num_devices, per_host, numbers):
    assert two_hosts(4).part(num_devices, per_host).numbers == numbers
    for too_many in ((9, None), (6, 2), (8, 8)):
        with pytest.raises(ValueError):
            two_hosts(4).part(*too_many)
