"""Print every public measurement beside what the presets predict for it, or write the page:

python -m dreamshard.testbeds.accelerators.preset_check [--write docs/presets.md]
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dreamshard.formatting import markdown_table
from dreamshard.testbeds.accelerators.checked import checked, kernel_agreement
from dreamshard.testbeds.accelerators.collective_check import sections
from dreamshard.testbeds.accelerators.link_curves import link_curve
from dreamshard.testbeds.accelerators.links import all_to_all_s
from dreamshard.testbeds.accelerators.measured_kernels import ASSUMED_GPU, GROUPS, KERNEL, KernelCheck, kernel_checks
from dreamshard.testbeds.accelerators.measured_links import BAR, LinkCheck, link_checks
from dreamshard.testbeds.accelerators.specs import A100, SPECS

_HEAD = """# How far the presets have been checked

Written by `python -m dreamshard.testbeds.accelerators.preset_check --write docs/presets.md` from the
[public measurements](../dreamshard/testbeds/accelerators/measurements/README.md); a test keeps the page and the bars.
Nothing here was measured by this project. Times are in microseconds; *ratio* is predicted over measured, *spread* the
geometric standard deviation of the ratios."""
_KERNELS = """## Kernels

Bars: per GPU a geometric mean within 0.9 to 1.1 and a spread of at most 1.25, for kernels with all rows in device memory.
Three constants are fitted (`BANDWIDTH_SHARE`, `UPDATE_SHARE` and `STEP_CYCLES` in
[kernels.py](../dreamshard/testbeds/accelerators/kernels.py)), on the sweep over dims of torchrec PR 2365, taken for an
A100, and on the V100's kernels. The H100 and FBGEMM PR 493 are in no fit. The V100's kernels are those from which FBGEMM's
were made; its backward adds to rows by atomics without a sort, and is predicted as one read and one write of a row for each
lookup. The host's share of small calls is that of the first two calls of the B200; all other calls are in no fit. GPUs
without a row (2080 Ti, H200, B300, GB200, GB300, L40S, RTX PRO 6000, and the A100 by its name) rest on datasheets and on
the constants of the others."""
_KERNEL_MISSES = """Where predictions are off, and why:

- FBGEMM PR 493 (January 2021, a GPU without a name, taken for a V100) misses the bar: forward and backward together take 1.5
  times as long as predicted, while the forward alone agrees. Its backward, with stochastic rounding, is older than the
  kernels modelled here.
- The two other lists of torchrec PR 2365 are in no bar. One (4 tables of 1,000 rows, 290 to 318 us) contains a whole module
  on an unknown host, ten times what FBGEMM's operator takes on the B200's host. The other (16 tables of 100,000 rows) takes
  nine times as long per byte as the list that is evaluated, which the source does not explain; both cannot hold for one
  kernel.
- One call of the B200 has batches of several sizes (`vbe`), whose extra work on the host is not modelled."""
_LINKS = """## All-to-all within a node

Bar: within 15 % at every size that is left out of the fit of its curve, and at 4 GPUs by the curves of 2 and 8 alone.
*Neighbours* is predicted without that size, *others* without that number of GPUs."""
_MISSES = """Outside the bar, and why:

- *contradicted*: a smaller message took so much longer, or a larger one so much less, that no curve that never falls is
  within 15 % of both;
- *scatter*: the times around it fall and rise, though by less;
- *step*: NCCL changes its protocol or number of channels between two sizes, which shows only at the size itself;
- *contention*: 4 L40S boards share the host's bridges, which 2 do not, and 8 share more of them: neither tells of 4.

The curves in use pass through all sizes and numbers, with falling times averaged, so that they miss only what is
contradicted or scattered."""
_NETWORK = """## Between nodes

An all-to-all over several nodes takes the longer of its share within the node and its share over the adapters: 90 % of
their bandwidth (an assumption), plus the network's latency and 2 us for each GPU of another node (from nccl issue 1531: 64
H800 on 8 nodes, 296 to 338 us for 8 MiB each). All nodes are full and reach each other at full speed. The one figure to
check it on:"""


def page() -> str:
    """The whole page as Markdown."""
    parts = [
        _HEAD,
        markdown_table([{"preset": spec.name, "checked": checked(spec)} for spec in SPECS.values()]),
        _KERNELS,
        markdown_table(_kernel_summary()),
        _KERNEL_MISSES,
        _LINKS,
        markdown_table(_link_summary()),
        _MISSES,
        markdown_table(_misses()),
        *sections(),
        _NETWORK,
        markdown_table([_network_figure()]),
        "## Every kernel time",
        *_kernel_tables(),
        "## Every all-to-all",
        *_link_tables(),
    ]
    return "\n\n".join(parts) + "\n"


def _kernel_summary() -> list[dict[str, Any]]:
    rows = []
    for gpu, group in dict.fromkeys((check.row.gpu, check.group) for check in kernel_checks()):
        found = kernel_agreement(gpu, group)
        if found is not None:
            met = 0.9 <= found.mean <= 1.1 and found.spread <= 1.25
            rows.append(
                {
                    "GPU": gpu + (f", as {ASSUMED_GPU[gpu]}" if gpu in ASSUMED_GPU else ""),
                    "times": f"{found.count} {group}",
                    "mean ratio": f"{found.mean:.2f}",
                    "spread": f"{found.spread:.2f}",
                    "lowest to highest": f"{found.lowest:.2f} to {found.highest:.2f}",
                    "bar": "none" if group != KERNEL else "met" if met else "missed",
                }
            )
    return rows


def _kernel_tables() -> Iterable[str]:
    for group, meaning in GROUPS.items():
        checks = [check for check in kernel_checks() if check.group == group]
        yield f"### {meaning[0].upper()}{meaning[1:]}"
        yield markdown_table([_kernel_line(check) for check in checks])


def _kernel_line(check: KernelCheck) -> dict[str, Any]:
    row = check.row
    return {
        "GPU": row.gpu,
        "operation": row.operation,
        "tables": row.num_tables,
        "rows": _listed(row.rows),
        "dims": _listed(row.dims),
        "pooling": _listed(row.pooling),
        "batch": _listed(row.batch_sizes),
        "weights": row.precision,
        "measured": _us(row.time_us),
        "predicted": "not modelled" if check.predicted_us is None else _us(check.predicted_us),
        "ratio": "" if check.ratio is None else f"{check.ratio:.2f}",
        "source and notes": f"{row.source}: {row.notes}".replace("|", "/"),
    }


def _us(time_us: float) -> str:
    return f"{time_us:,.0f}" if time_us >= 1000 else f"{time_us:.4g}"


def _listed(values: Sequence[float | int]) -> str:
    return ", ".join(f"{value:g}" if value < 1e5 else f"{value:.0f}" for value in values)


def _link_summary() -> list[dict[str, Any]]:
    rows = []
    for gpu, num_gpus in dict.fromkeys((check.gpu, check.num_gpus) for check in link_checks()):
        checks = [check for check in link_checks() if (check.gpu, check.num_gpus) == (gpu, num_gpus)]
        by_count = [abs(check.count_error) for check in checks if check.count_error is not None]
        rows.append(
            {
                "GPU": gpu,
                "GPUs": num_gpus,
                "without the size": _within([abs(check.size_error) for check in checks]),
                "without the number": _within(by_count) if by_count else "",
            }
        )
    return rows


def _within(errors: Sequence[float]) -> str:
    return f"{sum(error <= BAR for error in errors)} of {len(errors)} within {BAR:.0%}, worst {max(errors):.0%}"


def _misses() -> list[dict[str, Any]]:
    rows = []
    for check in link_checks():
        for left_out, error in (("size", check.size_error), ("number", check.count_error)):
            if error is not None and abs(error) > BAR:
                rows.append(
                    {
                        "GPU": check.gpu,
                        "GPUs": check.num_gpus,
                        "bytes": f"{check.sent_bytes:,}",
                        "measured": _us(check.time_us),
                        "left out": left_out,
                        "error": f"{error:+.0%}",
                        "why": _why(check, left_out),
                    }
                )
    return rows


def _why(check: LinkCheck, left_out: str) -> str:
    if check.most_contradicted > (1 + BAR) / (1 - BAR):
        return "contradicted"
    if check.gpu == "l40s" and left_out == "number":
        return "contention"
    return "scatter" if check.most_contradicted > 1 else "step"


def _link_tables() -> Iterable[str]:
    for gpu in dict.fromkeys(check.gpu for check in link_checks()):
        yield f"### {gpu}"
        sizes: dict[int, dict[int, LinkCheck]] = {}
        for check in link_checks():
            if check.gpu == gpu:
                sizes.setdefault(check.sent_bytes, {})[check.num_gpus] = check
        yield markdown_table([_link_line(size, checks) for size, checks in sizes.items()])


def _link_line(size: int, checks: dict[int, LinkCheck]) -> dict[str, Any]:
    line: dict[str, Any] = {"bytes": f"{size:,}"}
    for num_gpus, check in checks.items():
        curve_us = 1e6 * float(link_curve(check.gpu, num_gpus).seconds(torch.tensor(float(size), dtype=torch.float64)))
        line |= {
            f"{num_gpus} GPUs": _us(check.time_us),
            f"{num_gpus}: curve": _us(curve_us),
            f"{num_gpus}: neighbours": _us(check.without_size_us),
        }
        if check.without_count_us is not None:
            line[f"{num_gpus}: others"] = _us(check.without_count_us)
    return line


def _network_figure() -> dict[str, Any]:
    measured_s = 0.203
    four_adapters = replace(A100, network_bytes_per_s=4 * 25e9 / 8)  # 200 Gb/s each, for eight GPUs
    seconds = float(all_to_all_s(torch.full((16,), 4 * 2.0**30, dtype=torch.float64), four_adapters)[0])
    return {
        "what": "16 A100 on two nodes with four 200 Gb/s adapters each, 4 GiB each (nccl issue 1138)",
        "measured": _us(1e6 * measured_s),
        "predicted": _us(1e6 * seconds),
        "ratio": f"{seconds / measured_s:.2f}",
    }


def main() -> None:
    """Print or write the page."""
    parser = argparse.ArgumentParser(description="Compare the presets with public measurements of GPUs.")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there instead of printing it")
    write: Path | None = parser.parse_args().write
    if write is None:
        print(page(), end="")  # noqa: T201
    else:
        write.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
