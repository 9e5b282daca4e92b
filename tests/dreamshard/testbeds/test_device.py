import os

import psutil
import pytest
import torch

from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.device import Device, last_level_cache_bytes, machine_memory_bytes
from tests.helpers.lookups import EvenLookups


def device(batch=64) -> Device:
    return Device(TestbedSetup(num_devices=1, batch_size=batch, lookups=EvenLookups(64)), torch.device("cpu"))


def test_weights_of_operators_used_together_are_adjacent():
    place = device()
    place.weights([40])
    first, second = place.weights([800, 4000])
    assert (first != 0).any()
    assert first.view(torch.float32).isfinite().all()
    first.fill_(1)
    second.fill_(2)
    assert (first == 1).all()
    assert (place.weights([40])[0] == 1).all()


def test_lookups_of_too_few_samples_are_refused():
    with pytest.raises(ValueError):
        device(batch=65).read("a", 50)


@pytest.mark.parametrize(
    ("limit", "limits", "expected"),
    [
        ("0::/", {"memory.max": "max"}, None),
        ("0::/job/step", {"job/step/memory.max": "max", "job/memory.max": "5000", "memory.max": "9000"}, 5000),
        ("9:memory:/job\n8:pids:/", {"memory/job/memory.limit_in_bytes": "7000"}, 7000),
        ("9:cpu,memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("", {}, None),
    ],
)
def test_a_containers_limit_is_the_machines_memory(tmp_path, limit, limits, expected):
    for name, text in limits.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text(f"{limit}\n" if limit else "")
    total = psutil.virtual_memory().total
    assert machine_memory_bytes(tmp_path / "groups", tmp_path / "own") == (expected or total)


def test_what_exceeds_a_ranks_share_of_the_memory_does_not_fit():
    one, of_four = (Device(device().setup, torch.device("cpu"), ranks) for ranks in (1, 4))
    assert 0 < of_four.free_bytes() <= machine_memory_bytes() // 4
    assert of_four.free_bytes() < one.free_bytes()
    assert of_four.within_memory(lambda: 1, machine_memory_bytes() // 2) is None


def test_ranks_share_the_flush_of_a_cache_that_they_share(tmp_path):
    for cpu in os.sched_getaffinity(0):
        for index, (level, size) in enumerate([("1", "48K"), ("2", "2048K"), ("3", "307200K")]):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, text in {"level": level, "size": size, "shared_cpu_map": f"{2 ** os.cpu_count() - 1:x}"}.items():
                (folder / name).write_text(f"{text}\n")
    assert last_level_cache_bytes(1, tmp_path) == 300 * 2**20
    assert last_level_cache_bytes(2, tmp_path) == 300 * 2**20 // min(2, os.cpu_count())
    assert last_level_cache_bytes(1, tmp_path / "none") == 0
