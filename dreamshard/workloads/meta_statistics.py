"""Statistics that Meta published of its two data sets, and the laws of access counts that follow from them.

Sources: `*_locality_stats.txt` of github.com/facebookresearch/dlrm_datasets; rows and pooling factors of the 2021 set
from AutoShard (Zha et al., KDD 2022, arXiv 2208.06399). The 2022 set's rows are not published and are assumed to be
distributed as in 2021.
"""

import re
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from dreamshard.tables import NUM_BINS
from dreamshard.workloads.config import DATA

MAX_ROWS, MEAN_ROWS = 12_543_670, 4_107_458
MAX_POOLING = 193.0

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PublishedStatistics:
    """Totals and histograms of one batch over all tables.

    Attributes:
        lookups: total over all tables.
        unique_rows: distinct rows looked up, total over all tables.
        unique_share: `[17]` share of the distinct rows per access-count bin.
        lookup_share: `[17]` share of the lookups per access-count bin.
    """

    num_tables: int
    batch_size: int
    lookups: int
    unique_rows: int
    unique_share: Vector
    lookup_share: Vector


@dataclass(frozen=True)
class CountLaw:
    """Access counts of rows within one bin: the maximum-entropy law with the bin's mean.

    Attributes:
        low: exclusive lower bound of the counts.
        cumulative: probability of a count of at most `low + 1 + i`.
        mean: mean count.
    """

    low: int
    cumulative: Vector
    mean: float

    def draw(self, num_rows: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        """Ascending counts of `num_rows` rows, stratified over the law so that their mean is close to its mean."""
        levels = (np.arange(num_rows) + generator.random()) / max(1, num_rows)
        return self.low + 1 + np.searchsorted(self.cumulative[:-1], levels, side="right")


@cache
def published_statistics(name: str) -> PublishedStatistics:
    """Statistics of the first published batch of `meta-dlrm-2021` or `meta-dlrm-2022`."""
    first = (DATA / f"{name}-locality_stats.txt").read_text().strip().split("\n\n")[0]
    tables, batch = re.findall(r"_t(\d+)_bs(\d+)", first)[0]
    shares = [float(share) for share in re.findall(r"^\(.*: (\d\.\d+)$", first, flags=re.MULTILINE)]
    return PublishedStatistics(
        num_tables=int(tables),
        batch_size=int(batch),
        lookups=int(re.findall(r"# of indices: (\d+)", first)[0]),
        unique_rows=int(re.findall(r"# of unique cols: (\d+)", first)[0]),
        unique_share=np.asarray(shares[:NUM_BINS]),
        lookup_share=np.asarray(shares[NUM_BINS:]),
    )


@cache
def count_laws(name: str) -> tuple[CountLaw, ...]:
    """The law of access counts within each of the 17 bins.

    A bin's mean count is the ratio of the two histograms where the three published digits suffice, else the mean of a
    density proportional to count ** -2, which has equal shares of lookups per bin.
    """
    stats = published_statistics(name)
    return tuple(_count_law(stats, j) for j in range(NUM_BINS))


def _count_law(stats: PublishedStatistics, j: int) -> CountLaw:
    low = 0 if j == 0 else 2 ** (j - 1)
    high = 2**j if j < NUM_BINS - 1 else max(2**j, stats.batch_size)  # once per sample at most
    counts = np.arange(low + 1, high + 1, dtype=np.float64)
    mean = float((1 / counts).sum() / (1 / counts**2).sum())
    if stats.unique_share[j] >= 0.01:
        ratio = stats.lookups * stats.lookup_share[j] / (stats.unique_rows * stats.unique_share[j])
        mean = float(np.clip(ratio, counts[0], counts[-1]))
    if len(counts) == 1:
        return CountLaw(low, np.ones(1), mean=float(counts[0]))
    scaled = (counts - counts[0]) / (counts[-1] - counts[0])
    left, right = -60.0, 60.0
    for _ in range(60):  # bisection: a larger tilt lowers the mean
        tilt = (left + right) / 2
        weights = np.exp(-tilt * scaled - max(0.0, -tilt))
        left, right = (tilt, right) if weights @ counts / weights.sum() > mean else (left, tilt)
    cumulative = np.cumsum(weights / weights.sum())
    return CountLaw(low, cumulative, mean=float(weights @ counts / weights.sum()))
