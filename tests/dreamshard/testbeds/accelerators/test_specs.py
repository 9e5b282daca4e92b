"""Accelerators by name."""

from dataclasses import replace

import pytest

from dreamshard.testbeds.accelerators.specs import A100, B200, H100, H200, RTX2080TI, SPECS, V100, accelerator, spec_of


def test_presets_are_found_by_name():
    assert accelerator("h200") is H200
    assert accelerator("rtx2080ti") is RTX2080TI


def test_an_unknown_accelerator_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"no accelerator 'tpu'.*a100.*h100.*h200.*rtx2080ti.*v100"):
        accelerator("tpu")


def test_a_figure_that_is_not_above_zero_is_refused_by_name():
    with pytest.raises(ValueError, match=r"'h100'.*link_latency_s"):
        replace(H100, link_latency_s=0.0)


def test_later_generations_have_more_memory_bandwidth():
    speeds = [spec.memory_bytes_per_s for spec in (RTX2080TI, V100, A100, H100, H200, B200)]
    assert speeds == sorted(speeds)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
    ],
)
def test_a_drivers_name_finds_its_preset(device, name):
    assert spec_of(device).name == name


def test_every_preset_says_how_its_link_is_modelled():
    assert {spec.link_curve for spec in SPECS.values()} == {*SPECS, "nvlink", "pcie"} - {"rtx2080ti", "v100"}
