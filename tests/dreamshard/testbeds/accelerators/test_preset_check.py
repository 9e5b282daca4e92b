"""The bars of the presets, and the page that shows them."""

import math
from collections import Counter
from pathlib import Path

import pytest

from dreamshard.testbeds.accelerators import kernels
from dreamshard.testbeds.accelerators.checked import agreement, kernel_agreement
from dreamshard.testbeds.accelerators.collective_check import OTHERS, law_ratios
from dreamshard.testbeds.accelerators.link_curves import MEASURED_LINKS
from dreamshard.testbeds.accelerators.measured_kernels import CALL, HOST, KERNEL, check, kernel_checks, tables_of
from dreamshard.testbeds.accelerators.measured_links import BAR, link_checks
from dreamshard.testbeds.accelerators.preset_check import page
from dreamshard.testbeds.accelerators.public_measurements import kernel_rows

PAGE = Path(__file__).parents[4] / "docs" / "presets.md"


@pytest.mark.parametrize(("gpu", "count"), [("h100", 8), ("v100", 20), ("unknown (Meta, 2024)", 9)])
def test_kernels_in_device_memory_are_predicted_within_the_bar(gpu, count):
    found = kernel_agreement(gpu)
    assert found.count == count
    assert 0.9 <= found.mean <= 1.1
    assert found.spread <= 1.25


def test_no_measured_kernel_is_dropped():
    groups = Counter(check.group for check in kernel_checks())
    assert groups == {KERNEL: 40, CALL: 7 + 6 + 10, HOST: 32, "unexplained": 7}
    unknown = [check for check in kernel_checks() if check.predicted_us is None]
    assert {(check.group, check.row.operation) for check in unknown} == {(HOST, "fwd")}


def test_the_host_links_share_fits_updates_in_host_memory():
    found = kernel_agreement("h100", HOST)
    assert found.count == 16
    assert 0.9 <= found.mean <= 1.1
    assert found.spread <= 1.25


@pytest.mark.parametrize("operation", OTHERS)
def test_bytes_alone_predict_large_collectives_over_nvlink_from_all_to_alls(operation):
    ratios = [ratio for gpu in MEASURED_LINKS["nvlink"] for ratio in law_ratios(gpu, operation)]
    assert len(ratios) == 8 * (5 * 3 + 2 * 2)
    found = agreement(ratios)
    assert 0.85 <= found.mean <= 1.25
    assert found.spread <= 1.3


def test_small_calls_of_a_host_that_was_not_fitted_are_predicted_within_a_quarter():
    found = kernel_agreement("v100", CALL)
    assert found.count == 10
    assert 0.75 <= found.mean <= 1.25


def _fit_error() -> float:
    """Mean squared logarithm of predicted over measured on the sources of the fit, each with the same weight."""
    errors: dict[tuple[str, str], list[float]] = {}
    for row in kernel_rows():
        found = check(row)
        if row.gpu in ("v100", "unknown (Meta, 2024)") and found.group == KERNEL:
            errors.setdefault((row.gpu, row.operation), []).append(math.log(found.ratio) ** 2)
    assert len(errors) == 3
    return sum(sum(found) / len(found) for found in errors.values())


@pytest.mark.parametrize("name", ["BANDWIDTH_SHARE", "UPDATE_SHARE", "STEP_CYCLES"])
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_fitted_constant_fits_its_sources_better_than_one_a_tenth_away(monkeypatch, name, factor):
    fitted = _fit_error()
    monkeypatch.setattr(kernels, name, factor * getattr(kernels, name))
    assert _fit_error() > fitted


@pytest.mark.parametrize("row", [row for row in kernel_rows() if row.distinct])
def test_the_sources_power_law_gives_as_many_distinct_rows_as_they_counted(row):
    assert tables_of(row).unique_rows.sum() == pytest.approx(row.distinct, rel=1e-3)


def test_all_to_alls_left_out_of_the_fit_are_within_the_bar_but_for_the_known_ones():
    by_size = Counter(check.gpu for check in link_checks() if abs(check.size_error) > BAR)
    by_count = Counter(check.gpu for check in link_checks() if check.count_error and abs(check.count_error) > BAR)
    assert len(link_checks()) == 525
    assert by_size == {"a100": 4, "b200": 2, "b300": 3, "gb200": 1, "h100": 3, "h200": 9, "l40s": 10, "rtx_pro_6000": 7}
    assert by_count == {"a100": 1, "h200": 5, "l40s": 14, "rtx_pro_6000": 3}


@pytest.mark.parametrize("gpu", ["a100", "b200", "b300", "h100", "h200", "gb200", "gb300"])
def test_large_all_to_alls_over_nvlink_are_within_the_bar_whatever_is_left_out(gpu):
    large = [check for check in link_checks() if check.gpu == gpu and check.sent_bytes >= 2**26]
    errors = [error for check in large for error in (check.size_error, check.count_error) if error is not None]
    assert max(abs(error) for error in errors) <= BAR


def test_the_page_is_what_the_command_writes():
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run python -m dreamshard.testbeds.accelerators.preset_check --write docs/presets.md"
    )
