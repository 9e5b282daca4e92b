"""How often 95 % intervals hold the true gain, and how often noise alone replaces a champion: simulations."""

import numpy as np
import pytest

from dreamshard.evaluation import PairedComparison, mean_error
from flows.rules.promotion import Gain, decide

COUNT = 1000
SPREAD = 0.06  # of the log ratios of costs between tasks
pytestmark = pytest.mark.slow
LAWS = {
    "normal": np.random.Generator.standard_normal,
    "skewed": lambda drawn, size: (drawn.standard_gamma(4, size) - 4) / 2,  # as gains over cost greedy are at 50x4
    "heavy tails": lambda drawn, size: drawn.standard_t(4, size) / 2**0.5,
}


def compared(gains: np.ndarray, tables: list[frozenset[str]] | None = None) -> PairedComparison:
    """The comparison on tasks with these log ratios of costs."""
    error, tables_error = mean_error(gains.tolist(), tables)
    return PairedComparison.of(float(gains.mean()), error, tables_error=tables_error, num_tasks=len(gains))


@pytest.mark.parametrize(("law", "num_tasks"), [*((law, 24) for law in LAWS), ("normal", 10)])
def test_intervals_hold_the_true_gain_in_95_of_100(law, num_tasks):
    drawn = 0.02 + SPREAD * LAWS[law](np.random.default_rng(0), (COUNT, num_tasks))
    gains_found, true = [compared(gains) for gains in drawn], 1 - np.exp(-0.02)
    assert 0.93 <= np.mean([gain.low <= true <= gain.high for gain in gains_found]) <= 0.97
    assert np.mean([gain.low > true for gain in gains_found]) <= 0.035


class Pool:
    """Held-out tables and tasks of them; part of the gains' variance between tasks is that of the tables."""

    def __init__(self, num_tables: int, table_share: float, seed: int, num_tasks: int = 30, size: int = 20) -> None:
        self.drawn, self.share, self.size = np.random.default_rng(seed), table_share, size
        self.has = np.array([self.drawn.permutation(num_tables) < size for _ in range(num_tasks)], float)  # [N, T]
        self.tables = [frozenset(map(str, np.flatnonzero(row))) for row in self.has]

    def version(self) -> np.ndarray:
        """Log costs of a version on the tasks, equal to all others over all tables that there might be."""
        shared, others = (self.drawn.standard_normal(count) for count in self.has.T.shape)
        shared = np.sqrt(self.share / self.size) * self.has @ shared
        return SPREAD / 2**0.5 * (shared + np.sqrt(1 - self.share) * others)


@pytest.mark.parametrize("num_tables", [48, 120])
@pytest.mark.parametrize("share", [0.0, 0.15])
def test_an_equal_candidate_seems_better_on_other_tables_in_at_most_1_of_40(num_tables, share):
    pools = [Pool(num_tables, share, seed) for seed in range(COUNT)]
    false = [compared(pool.version() - pool.version(), pool.tables).is_significant() for pool in pools]
    assert np.mean(false) <= 0.025 + 0.01


@pytest.mark.parametrize("share", [0.0, 0.15])
def test_a_month_of_nights_on_the_same_tasks_rarely_replaces_an_equal_champion(share):
    replaced = 0
    for seed in range(COUNT // 4):
        pool = Pool(48, share, seed)
        champion, better = pool.version(), PairedComparison.of(0.1, 0.01, num_tasks=30)
        over_heuristic = Gain(over="dim_greedy", measured=better)
        for attempt in range(1, 31):
            gain = Gain(over="version 3", measured=compared(champion - pool.version(), pool.tables), attempt=attempt)
            replaced += decide(over_heuristic, gain, rival=3, champion=3).code == "beats_champion"
    assert replaced / (COUNT // 4) <= 0.025 + 0.01
