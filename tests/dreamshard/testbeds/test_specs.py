"""Accelerators by name."""

from dataclasses import replace

import pytest

from dreamshard.testbeds.specs import A100, H100, H200, RTX2080TI, V100, accelerator


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
    speeds = [spec.memory_bytes_per_s for spec in (RTX2080TI, V100, A100, H100, H200)]
    assert speeds == sorted(speeds)
