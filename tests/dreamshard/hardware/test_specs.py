"""Accelerators by name."""

from dataclasses import replace

import pytest

from dreamshard.hardware.accelerator import PRESETS, preset_of

A100 = PRESETS["a100"]
B200 = PRESETS["b200"]
H100 = PRESETS["h100"]
H200 = PRESETS["h200"]
RTX2080TI = PRESETS["rtx2080ti"]
V100 = PRESETS["v100"]


def test_a_figure_that_is_not_above_zero_is_refused_by_name():
    with pytest.raises(ValueError, match="link_latency"):
        replace(H100, link_latency_s=0.0)


def test_later_generations_have_more_memory_bandwidth():
    speeds = [spec.memory_bytes_per_s for spec in (RTX2080TI, V100, A100, H100, H200, B200)]
    assert speeds == sorted(speeds)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA L4", "l4"),
        ("Tesla T4", "t4"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
    ],
)
def test_a_drivers_name_finds_its_preset(device, name):
    assert preset_of(device).name == name


def test_every_preset_says_how_its_link_is_modelled():
    assert all(spec.link_curve for spec in PRESETS.values())
