import csv
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dreamshard.tables import NUM_BINS
from dreamshard.workloads import META_WORKLOADS, WorkloadConfig, open_workload
from dreamshard.workloads.lookups import bin_counts, statistics
from dreamshard.workloads.workload import draw_counts, meta_lookups, population

PUBLISHED = Path(__file__).parents[2] / "benchmarks/data"


@cache
def published_statistics(name):
    """Totals and histograms of the first published batch: lookups, distinct rows, and shares of both by bin."""
    first = (PUBLISHED / f"{name}-locality_stats.txt").read_text().split("\n\n")[0]
    lookups, unique_rows = (float(re.search(rf"# of {of}: (\d+)", first)[1]) for of in ("indices", "unique cols"))
    shares = np.array(re.findall(r"^\(.*: (\d\.\d+)$", first, flags=re.MULTILINE), dtype=float)
    return SimpleNamespace(
        lookups=lookups, unique_rows=unique_rows, unique_share=shares[:NUM_BINS], lookup_share=shares[NUM_BINS:]
    )


def counts_of(lookups):
    """How often each distinct row is looked up."""
    return np.unique(lookups.indices.numpy(), return_counts=True)[1]


def mean_of(j, law):
    return np.diff(law, prepend=0) @ (2**j // 2 + 1 + np.arange(len(law)))


def test_counts_of_a_bin_lie_in_the_bin_and_have_its_mean():
    for j, law in enumerate(population("meta-dlrm-2021").laws):
        counts = draw_counts(j, law, 2000, np.random.default_rng(0))
        assert bin_counts(counts)[j] == 2000
        assert counts.mean() == pytest.approx(mean_of(j, law), rel=0.01)


@pytest.mark.parametrize("name", META_WORKLOADS)
def test_planned_tables_have_the_published_totals_and_histograms(name):
    stats, tables = published_statistics(name), population(name)
    rows = tables.rows_by_bin.sum(axis=0)  # [17]
    lookups = rows * [mean_of(j, law) for j, law in enumerate(tables.laws)]
    assert lookups.sum() == pytest.approx(stats.lookups, rel=0.01)
    assert rows.sum() == pytest.approx(stats.unique_rows, rel=0.01)
    assert rows / rows.sum() == pytest.approx(stats.unique_share, abs=0.01)
    assert lookups / lookups.sum() == pytest.approx(stats.lookup_share, abs=0.01)


def test_tables_have_the_true_means_and_deviations():
    """`feature_means` and `feature_stds` of NeuroShard's models/compute.pt, for which a table has at least 100 rows."""
    tables = population("meta-dlrm-2021")
    lookups = tables.rows_by_bin @ [mean_of(j, law) for j, law in enumerate(tables.laws)]
    bins = tables.rows_by_bin / np.maximum(tables.rows_by_bin.sum(axis=1), 1)[:, None]
    ours = np.column_stack([bins, lookups / tables.batch_size, np.maximum(tables.rows, 100)])  # [T, 19]
    with (Path(__file__).parent / "meta_dlrm_2021_moments.csv").open() as file:
        true = np.array([[float(row["mean"]), float(row["std"])] for row in csv.DictReader(file)])  # [19, 2]
    assert ours.mean(axis=0) == pytest.approx(true[:, 0], rel=0.02)
    assert ours.std(axis=0) == pytest.approx(true[:, 1], rel=0.02)


def test_unused_tables_have_no_lookups():
    workload = open_workload(WorkloadConfig(batch_size=2048))
    unused = np.flatnonzero(population("meta-dlrm-2021").rows_by_bin.sum(axis=1) == 0)
    assert len(unused) == 36
    for t in unused.tolist():
        table = statistics(workload.listed[t], workload.lookups(t))
        assert (table.lookups.item(), table.unique_rows.item(), table.pooling_factor.item()) == (0, 0, 0)
        assert not table.bins.any()


def test_the_first_samples_are_like_the_full_batch():
    t = int(population("meta-dlrm-2021").rows_by_bin.sum(axis=1).argmax())
    full, first = meta_lookups("meta-dlrm-2021", t, 65_536, 0), meta_lookups("meta-dlrm-2021", t, 4096, 0)
    assert first.offsets.tolist() == full.offsets[:4097].tolist()
    cut, thinned = counts_of(full.first(4096)), counts_of(first)
    assert len(first.indices) == len(full.first(4096).indices)
    assert len(thinned) == pytest.approx(len(cut), rel=0.02)
    assert bin_counts(thinned) / len(thinned) == pytest.approx(bin_counts(cut) / len(cut), abs=0.02)


@pytest.mark.parametrize("config", [{"num_tables": 400, "max_table_bytes": 2**20}, {"batch_size": 65537}])
def test_more_than_the_data_set_has_is_one_clear_sentence(config):
    with pytest.raises(ValueError):
        open_workload(WorkloadConfig(**config))
