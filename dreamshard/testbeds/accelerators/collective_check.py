"""How what only some ways to shard need compares with public measurements, as sections of docs/presets.md."""

from typing import Any, get_args

import torch

from dreamshard.formatting import markdown_table
from dreamshard.testbeds.accelerators.checked import agreement
from dreamshard.testbeds.accelerators.link_curves import MEASURED_LINKS, link_curve
from dreamshard.testbeds.accelerators.links import sent_share
from dreamshard.testbeds.accelerators.measured_links import BAR, link_checks_of
from dreamshard.testbeds.accelerators.public_measurements import Operation, collective_times

LARGE_BYTES = 2**22  # from which on the law of bytes is compared, since below it latency decides
_COLLECTIVES = """## Reduce-scatter, all-gather and all-reduce within a node

Row-wise tables wait for the first two, data-parallel ones for the last, tables on one host for the first two among its
devices. Each follows a curve through its own public times. The bar is that of the all-to-all: within 15 % of every size that
is left out of the fit."""
_LAW = """NCCL moves the same bytes in a reduce-scatter or an all-gather as in an all-to-all of the same size, and twice as
many in an all-reduce. What that law and the all-to-all's curves predict for 4 MiB and more, over what was measured:"""
_HOST = """Presets without measured links take the mean share of the datasheet's bandwidth that measured links of their kind
reach in each collective.

## Tables in host memory, data-parallel tables, several nodes

A full cache misses the rows that do not fit, from the hottest down
([loads.py](../dreamshard/testbeds/accelerators/loads.py)); rows come in and go out at once, each way at 65 % of the link's
bandwidth (`HOST_LINK_SHARE`). It is fitted to the 16 backward times of an H100 below, which read and write rows or moments
in host memory. The forward times there are of no cache, or of caches that still fill, so they say nothing of a full one.

These have been compared with no measurement, because none was found: **how often a full cache misses**; the dense optimizer
of data-parallel tables, taken to reach 85 % of the memory's bandwidth (`STREAM_SHARE`); any collective over several nodes
but the all-to-all; and a whole step of row-wise, table-row-wise, grid or data-parallel tables."""
OTHERS: tuple[Operation, ...] = tuple(each for each in get_args(Operation) if each != "all_to_all")


def sections() -> list[str]:
    """Parts of the page, as Markdown."""
    return [_COLLECTIVES, markdown_table(_left_out()), _LAW, markdown_table(_by_all_to_all()), _HOST]


def _left_out() -> list[dict[str, Any]]:
    """How many times of each collective and GPU a curve that has not seen them predicts within the bar."""
    rows = []
    for gpu in sorted(collective_times()):
        row: dict[str, Any] = {"GPU": gpu}
        for operation in OTHERS:
            errors = [abs(check.size_error) for check in link_checks_of(gpu, operation)]
            within = sum(error <= BAR for error in errors)
            row[_name(operation)] = f"{within} of {len(errors)} within {BAR:.0%}, worst {max(errors):.0%}"
        rows.append(row)
    return rows


def _by_all_to_all() -> list[dict[str, Any]]:
    """Each collective predicted by the all-to-all's curve and the bytes that NCCL moves, over what was measured."""
    rows = []
    for kind, gpus in MEASURED_LINKS.items():
        for operation in OTHERS:
            found = agreement([ratio for gpu in gpus for ratio in law_ratios(gpu, operation)])
            rows.append(
                {
                    "links": kind,
                    "collective": _name(operation),
                    "times": found.count,
                    "mean ratio": f"{found.mean:.2f}",
                    "spread": f"{found.spread:.2f}",
                    "lowest to highest": f"{found.lowest:.2f} to {found.highest:.2f}",
                }
            )
    return rows


def law_ratios(gpu: str, operation: Operation) -> list[float]:
    """Predicted by the law of bytes over measured, of each large time of a GPU."""
    ratios = []
    for num_gpus, times in collective_times(operation)[gpu].items():
        for num_bytes, time_us in times.items():
            if num_bytes >= LARGE_BYTES:
                share = sent_share(num_gpus, operation) / sent_share(num_gpus, "all_to_all")
                exchange_s = float(link_curve(gpu, num_gpus).seconds(torch.tensor(float(num_bytes))))
                ratios.append(1e6 * share * exchange_s / time_us)
    return ratios


def _name(operation: Operation) -> str:
    return operation.replace("_", "-")
