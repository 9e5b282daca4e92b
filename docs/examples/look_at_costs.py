"""Draws what tables, devices and versions cost, from a home in which `dreamshard run` has finished."""

# %% [markdown]
# # What tables, devices and versions cost
#
# Four figures from a home in which `dreamshard run` has finished. Run it as a script, or open it as a notebook: VS Code
# knows the cells as they are, Jupyter with Jupytext.
#
#     DREAMSHARD_HOME=.dreamshard FIGURES=figures python docs/examples/look_at_costs.py

# %%
import os
from pathlib import Path

import duckdb
import matplotlib

if "__file__" in globals():  # a script: no window
    matplotlib.use("agg")
import matplotlib.pyplot as plt

home = Path(os.environ.get("DREAMSHARD_HOME", ".dreamshard"))
catalog = duckdb.connect(home / "catalog.duckdb", read_only=True)
figures = Path(os.environ.get("FIGURES", "figures"))
figures.mkdir(parents=True, exist_ok=True)

versions = catalog.sql("from versions").df()
newest = versions.iloc[-1]
print(f"{len(versions)} versions; the newest is {newest['version']}, of {newest['source']} on {newest['hardware']}")

# %% [markdown]
# ## The most expensive tables
# Alone on a device, on the hardware and at the batch of the newest version. Measured where a placement had the table alone,
# otherwise estimated by the version's cost network; the lines show its mean relative error on held-out placements.

# %%
costs = catalog.sql("from table_costs").df()
costs = costs[
    (costs["hardware"] == newest["hardware"]) & (costs["batch_size"] == newest["batch_size"]) & costs["is_current"]
]
most = costs.sort_values("compute_ms").tail(15)
error_ms = (most["compute_ms"] * most["error"]).fillna(0)
shades = most["origin"].map({"measured": "tab:blue", "estimated": "tab:orange"})

figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
axes.barh(most["table_name"], most["compute_ms"], xerr=error_ms, color=shades, ecolor="gray")
axes.set(xlabel="forward and backward compute, ms", title=f"Most expensive tables on {newest['hardware']}")
axes.legend(handles=[plt.Rectangle((0, 0), 1, 1, color=shade) for shade in ("tab:blue", "tab:orange")],
            labels=["measured alone", "estimated"], loc="lower right")  # fmt: skip
figure.savefig(figures / "expensive_tables.png", dpi=120)

# %% [markdown]
# ## Cost by device
# The newest version's placement of one held-out task, by phase. All devices wait for the slowest.

# %%
phases = ["forward_compute_ms", "forward_comm_ms", "backward_comm_ms", "backward_compute_ms"]
devices = catalog.sql("from evaluated_devices").df()
devices = devices[(devices["run_key"] == newest["evaluation"]) & (devices["placer"] == "dreamshard")]
task = devices["task"].min()
devices = devices[devices["task"] == task].sort_values("device").set_index("device")

axes = devices[phases].plot.bar(stacked=True, figsize=(8, 5), rot=0)
axes.axhline(devices["device_ms"].max(), color="gray", linestyle="--", linewidth=1)
axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
axes.set(ylabel="ms", title=f"Cost by device, task {task}, version {newest['version']}")
axes.figure.savefig(figures / "cost_by_device.png", dpi=120, bbox_inches="tight")

# %% [markdown]
# ## Savings over versions
# The share of the best heuristic's cost that each version saves on its own held-out tasks, with 95 % intervals and a
# line for each model and topology.

# %%
compared = versions[versions["gain_over_best_heuristic_pct"].notna()]
figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
for model, group in compared.groupby("registered_model"):
    gain = group["gain_over_best_heuristic_pct"]
    below, above = gain - group[f"{gain.name}_low"], group[f"{gain.name}_high"] - gain
    axes.errorbar(group["version"], gain, yerr=[below, above], marker="o", capsize=3, label=model)
axes.set(xlabel="version", ylabel="%", xticks=versions["version"], title="Measured cost saved over the best heuristic")
axes.axhline(0, color="gray", linewidth=1)
if len(compared):
    axes.legend(fontsize="small")
figure.savefig(figures / "savings_over_versions.png", dpi=120)

# %% [markdown]
# ## Predicted and measured
# Every placer's placements of the held-out tasks, as the newest version's network predicted them.

# %%
evaluations = catalog.sql(
    f"""
    select placer, predicted_ms, overall_ms from evaluations
    where run_key = '{newest["evaluation"]}' and overall_ms is not null
    """
).df()
figure, axes = plt.subplots(figsize=(6, 6), layout="constrained")
for placer, group in evaluations.groupby("placer"):
    axes.scatter(group["predicted_ms"], group["overall_ms"], label=placer, s=18)
largest = evaluations[["predicted_ms", "overall_ms"]].max().max()
axes.plot([0, largest], [0, largest], color="gray", linewidth=1)
axes.set(xlabel="predicted ms", ylabel="measured ms", title=f"Evaluation of version {newest['version']}")
axes.legend(fontsize="small")
figure.savefig(figures / "predicted_and_measured.png", dpi=120)
print(f"wrote {', '.join(sorted(path.name for path in figures.glob('*.png')))} to {figures}")
