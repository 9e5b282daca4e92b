"""Differences between two datasets: tables that were added, removed, resized, or whose lookups drifted.

Thresholds separate drift from noise, because the statistics of every new batch of lookups differ a little.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from dreamshard.tables import Tables

KINDS = ("added", "removed", "resized", "drifted")


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """One changed table; pairs are before and after, 0 if the table does not exist.

    Attributes:
        kind: one of `KINDS`; a resized table may have drifted too.
        reuse: share of the distinct rows that change their bin (total variation distance), 0 to 1.
        weight: the larger of the changed shares of work (pooling factor x dim) and of memory (rows x dim), relative to
            the earlier dataset.
    """

    name: str
    kind: str
    rows: tuple[int, int]
    dim: tuple[int, int]
    pooling_factor: tuple[float, float]
    reuse: float
    weight: float

    def counts(self, pooling: float, reuse: float) -> bool:
        """Whether it is more than noise."""
        before, after = self.pooling_factor
        drift = abs(after - before) / before if before else math.inf * (after > 0)
        return self.kind != "drifted" or _reaches(drift, pooling) or _reaches(self.reuse, reuse)

    def row(self) -> dict[str, str]:
        """The change as a row of a table for people."""

        def pair(values: tuple[Any, Any], form: str) -> str:
            return " -> ".join(dict.fromkeys(format(value, form) for value in values))

        return {
            "table": self.name,
            "change": self.kind,
            "rows": pair(self.rows, ","),
            "dim": pair(self.dim, ","),
            "pooling factor": pair(self.pooling_factor, ",.4g"),
            "reuse moved": f"{self.reuse:.1%}",
            "share of the dataset": f"{self.weight:.2%}",
        }


@dataclass(frozen=True, kw_only=True)
class DatasetDiff:
    """All changes between two datasets.

    Attributes:
        changes: largest weight first.
        num_before: tables of the earlier dataset; 0 if there is none.
        num_after: tables of the later dataset.
        matters: whether the placer should be trained again.
    """

    changes: tuple[TableChange, ...]
    num_before: int
    num_after: int
    matters: bool

    @property
    def counts(self) -> dict[str, int]:
        """Number of changed tables by kind."""
        counts = Counter(change.kind for change in self.changes)
        return {kind: counts[kind] for kind in KINDS}

    @property
    def label(self) -> str:
        """Tables added, removed and changed: `+3 -2 ~1`, or `unchanged`; empty without an earlier dataset."""
        if self.num_before == 0:
            return ""
        added, removed, resized, drifted = self.counts.values()
        signs = {"+": added, "-": removed, "~": resized + drifted}
        return " ".join(f"{sign}{count}" for sign, count in signs.items() if count) or "unchanged"

    @property
    def sentence(self) -> str:
        """The changes in one sentence."""
        if self.num_before == 0:
            return f"{self.num_after} tables, on which no training with these options has ended yet"
        if not self.changes:
            return f"none of the {self.num_after} tables changed by as much as the thresholds"
        counts = ", ".join(f"{count} {kind}" for kind, count in self.counts.items() if count)
        tables = f"of {self.num_before} tables before, {self.num_after} now"
        return f"{counts} ({tables}), most of all {self.changes[0].name}, {self.changes[0].kind}"


def diff_datasets(
    before: Tables | None, after: Tables, *, pooling: float = 0.1, reuse: float = 0.1, share: float = 0.0
) -> DatasetDiff:
    """Changes from `before` to `after`; tables are matched by name. Limits are the least changes that count; 0 for any.

    Args:
        before: dataset that was trained on, or None if there is none.
        after: current dataset.
        pooling: relative change of a table's pooling factor, 0.1 for 10 %.
        reuse: share of a table's distinct rows that change their bin.
        share: changed share of the tables for the whole dataset to count as changed, 1 for all.
    """
    if before is None:
        return DatasetDiff(changes=(), num_before=0, num_after=len(after), matters=True)
    old, new = ({name: tables.select([t]) for t, name in enumerate(tables.names)} for tables in (before, after))
    work = max(float((before.pooling_factor.double() * before.dim).sum()), 1e-12)
    memory = float((before.rows * before.dim).sum())
    changes = [_change(name, old.get(name), new.get(name), work, memory) for name in old | new]
    changes = [change for change in changes if change.counts(pooling, reuse)]
    changes.sort(key=lambda change: (-change.weight, change.name))
    matters = _reaches(len(changes) / max(len(before), len(after)), share)
    return DatasetDiff(changes=tuple(changes), num_before=len(before), num_after=len(after), matters=matters)


def _change(name: str, old: Tables | None, new: Tables | None, work: float, memory: float) -> TableChange:
    """The change of one table, however small; `work` and `memory` are of the whole earlier dataset."""
    pair = [(0, 0, 0.0) if t is None else (int(t.rows), int(t.dim), float(t.pooling_factor)) for t in (old, new)]
    rows, dim, pooling = zip(*pair, strict=True)
    reuse, kind = 0.0, "added" if old is None else "removed"
    if old is not None and new is not None:
        p, q = old.bins[0].double(), new.bins[0].double()
        reuse = 0.5 * float((p - q).abs().sum() + (p.sum() - q.sum()).abs())
        kind = "drifted" if pair[0][:2] == pair[1][:2] else "resized"
    before, after = pooling[0] * dim[0], pooling[1] * dim[1]
    changed_work = max(abs(after - before), reuse * max(before, after)) / work
    weight = max(changed_work, abs(rows[1] * dim[1] - rows[0] * dim[0]) / memory)
    return TableChange(name=name, kind=kind, rows=rows, dim=dim, pooling_factor=pooling, reuse=reuse, weight=weight)


def _reaches(change: float, threshold: float) -> bool:
    """Whether there is a change of at least the threshold."""
    return change > 0 and change >= threshold
