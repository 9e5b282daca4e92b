"""What Meta published of its two data sets, and the laws of access counts that follow from it.

Source: `*_locality_stats.txt` of github.com/facebookresearch/dlrm_datasets; rows and pooling factors of the 2021 set
from AutoShard (Zha et al., KDD 2022, arXiv 2208.06399). Those of the 2022 set are not published; its rows are taken to
be spread as in 2021.
"""

import re
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from dreamshard.tables import NUM_BINS
from dreamshard.workloads.synthetic import DATA

META_WORKLOADS = ("meta-dlrm-2021", "meta-dlrm-2022")
MAX_ROWS, MEAN_ROWS = 12_543_670, 4_107_458
MAX_POOLING = 193.0

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Published:
    """Totals and histograms of one batch over all tables.

    Attributes:
        num_tables: `T`.
        batch_size: `B`.
        lookups: in the batch, all tables together.
        unique_rows: distinct rows looked up, all tables together.
        unique_share: `[17]` share of the distinct rows per access-count bin.
        lookup_share: `[17]` share of the lookups that go to rows of each bin.
    """

    num_tables: int
    batch_size: int
    lookups: int
    unique_rows: int
    unique_share: Vector
    lookup_share: Vector


@dataclass(frozen=True)
class CountLaw:
    """How often rows within one bin are looked up: the maximum-entropy law with the bin's mean.

    Attributes:
        low: counts are above it.
        cumulative: chance of a count of at most `low + 1 + i`.
        mean: mean count.
    """

    low: int
    cumulative: Vector
    mean: float

    def draw(self, num_rows: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        """Counts of `num_rows` rows, evenly spread over the law so that their mean is close to its mean; ascending."""
        levels = (np.arange(num_rows) + generator.random()) / max(1, num_rows)
        return self.low + 1 + np.searchsorted(self.cumulative[:-1], levels, side="right")


@cache
def published(name: str) -> Published:
    """The first batch's statistics of `meta-dlrm-2021` or `meta-dlrm-2022`, as Meta published them."""
    first = (DATA / f"{name}-locality_stats.txt").read_text().strip().split("\n\n")[0]
    tables, batch = re.findall(r"_t(\d+)_bs(\d+)", first)[0]
    shares = [float(share) for share in re.findall(r"^\(.*: (\d\.\d+)$", first, flags=re.MULTILINE)]
    return Published(
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

    A bin's mean count is the ratio of the two histograms where three published digits give it well, else that of a
    density falling as count ** -2, which is what a flat share of lookups per bin means.
    """
    stats = published(name)
    return tuple(_count_law(stats, j) for j in range(NUM_BINS))


def _count_law(stats: Published, j: int) -> CountLaw:
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
    for _ in range(60):  # bisection on the tilt: the mean falls as it rises
        tilt = (left + right) / 2
        weights = np.exp(-tilt * scaled - max(0.0, -tilt))
        left, right = (tilt, right) if weights @ counts / weights.sum() > mean else (left, tilt)
    cumulative = np.cumsum(weights / weights.sum())
    return CountLaw(low, cumulative, mean=float(weights @ counts / weights.sum()))
