"""Draw the plots of RESULTS.md from the figures of the benchmarks: `python docs/pictures/draw.py`."""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[1]))

from tests.benchmarks.contest import DATA, summarised  # noqa: E402

SHADES = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
)  # Okabe and Ito: safe for colour-blind readers
MARKERS = ("o", "s", "^", "D", "v", "P")  # and in black and white
PLACERS = {
    "annealing": "long annealing, true costs",
    "dreamshard": "dreamshard",
    "cost_greedy": "cost greedy",
    "neuroshard": "NeuroShard's search",
    "torchrec_planner": "TorchRec's planner",
    "autoshard": "after AutoShard",
}

plt.rcParams.update(
    {"font.size": 10, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}
)


def draw_real_gpu() -> None:
    """Cost saved by placer and size."""
    figures = summarised(pd.read_csv(DATA / "real_gpu.csv"), ("dims", "size"), nested=True)
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for number, (name, label) in enumerate(PLACERS.items()):
        gains = figures[figures.placer == name].gain
        mean, low, high = (100 * np.array([getattr(gain, part) for gain in gains]) for part in ("mean", "low", "high"))
        at = [count + 0.8 * (number - 2.5) for count in range(10, 61, 10)]
        axes.errorbar(
            at,
            mean,
            yerr=[mean - low, high - mean],
            color=SHADES[number],
            marker=MARKERS[number],
            label=label,
            capsize=2,
            lw=1,
        )
    axes.axhline(0, color="black", lw=1)
    axes.set(xlabel="tables on 4 GPUs", ylabel="cost saved over the best heuristic (%)", xticks=range(10, 61, 10))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=3, frameon=False)
    figure.savefig(FOLDER / "real_gpu.png", dpi=110)


def draw_profiles() -> None:
    """Gap by the number of profiles."""
    found = pd.read_csv(DATA / "profiles.csv").query("law == 'neuroshard'")
    figure, both = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
    for axes, (size, of_size) in zip(both, found.groupby("size"), strict=True):
        for number, prior in enumerate(("v100", "rtx2080ti", "none")):
            ratios = of_size[(of_size.prior == prior) & (of_size.profiles != "heuristic")].astype({"profiles": int})
            ratios = ratios.groupby("profiles").ratio
            axes.errorbar(
                ratios.mean().index + 0.08 * (number - 1), ratios.mean(), yerr=1.96 * ratios.sem(), color=SHADES[number],
                marker=MARKERS[number], label=f"preset {prior}" if prior != "none" else "no preset", capsize=2, lw=1,
            )  # fmt: skip
        heuristic = of_size[of_size.profiles == "heuristic"].ratio.mean()
        axes.axhline(heuristic, color="black", ls="--", lw=1, label="best heuristic")
        axes.set(
            title=f"{size.replace('x', ' tables on ')} GPUs",
            xlabel="profiles (0: the current plan)",
            xticks=(0, 1, 2, 3, 5),
        )
    both[0].set(ylabel="cost / long annealing's cost")
    both[1].legend(frameon=False)
    figure.savefig(FOLDER / "profiles.png", dpi=110)


if __name__ == "__main__":
    draw_real_gpu()
    draw_profiles()
