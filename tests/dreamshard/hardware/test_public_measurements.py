"""What is read of the public measurements."""

from dreamshard.hardware.links import MEASUREMENTS, collective_times


def test_every_gpu_has_times_of_each_size_and_number():
    times = collective_times()
    assert times["h100"][8][2**29] == 1480.45  # by 2.27.3; 2.23 took 1468.6
    assert times["h200"][4][2**29] == 1202.4  # by 2.26.2; 2.23 took 1286.1
    assert {gpu: sorted(counts) for gpu, counts in times.items() if sorted(counts) != [2, 4, 8]} == {
        "gb200": [2, 4],
        "gb300": [2, 4],
    }
    assert all(len(by_bytes) == 21 for counts in times.values() for by_bytes in counts.values())


def test_the_measurements_name_their_sources_and_licence():
    readme = (MEASUREMENTS / "README.md").read_text()
    assert "ai-dynamo/aiconfigurator" in readme
    assert "Apache License, Version 2.0" in readme
