"""Differences between two datasets: tables that were added, removed, resized, or whose lookups drifted.

Thresholds separate drift from noise, because the statistics of every new batch of lookups differ a little.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from dreamshard.tables import Tables

Kind = Literal["added", "removed", "resized", "drifted"]
KINDS: tuple[Kind, ...] = ("added", "removed", "resized", "drifted")


@dataclass(frozen=True, kw_only=True)
class DriftThresholds:
    """Least changes that count; 0 for any change.

    Attributes:
        pooling: relative change of a table's pooling factor, 0.1 for 10 %.
        reuse: distance of a table's reuse histograms (`reuse_distance`).
        share: changed share of the tables for the whole dataset to count as changed, 1 for all.

    Raises:
        ValueError: a threshold is negative or not finite.
    """

    pooling: float = 0.1
    reuse: float = 0.1
    share: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"the threshold {name} is {value}, but nothing can change by that; give 0 or more")


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """One changed table.

    Pairs are before and after; 0 if the table does not exist.

    Attributes:
        kind: of change; a resized table may have drifted too.
        reuse: distance of the reuse histograms, 0 to 1; 0 for an added or removed table.
        weight: the larger of the changed shares of work (pooling factor x dim) and of memory (rows x dim), relative to
            the earlier dataset.
    """

    name: str
    kind: Kind
    rows: tuple[int, int]
    dim: tuple[int, int]
    pooling_factor: tuple[float, float]
    reuse: float
    weight: float


@dataclass(frozen=True, kw_only=True)
class DatasetDiff:
    """All changes between two datasets.

    Attributes:
        changes: largest weight first.
        num_before: tables of the earlier dataset; 0 if there is none.
        num_after: tables of the later dataset.
    """

    changes: tuple[TableChange, ...]
    num_before: int
    num_after: int
    thresholds: DriftThresholds

    @property
    def matters(self) -> bool:
        """Whether the placer should be trained again."""
        if self.num_before == 0:
            return True
        return _reaches(len(self.changes) / max(self.num_before, self.num_after), self.thresholds.share)

    @property
    def counts(self) -> dict[str, int]:
        """Number of changed tables by kind."""
        return {kind: sum(change.kind == kind for change in self.changes) for kind in KINDS}

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

    def rows(self, most: int | None = None) -> list[dict[str, str]]:
        """The first `most` changes, or all, as rows of a table for people."""
        return [_row(change) for change in self.changes[:most]]

    def payload(self, most: int = 50) -> dict[str, Any]:
        """The diff in plain types for programs; `changes` has the first `most`, the counts are of all."""
        return {
            "sentence": self.sentence,
            "matters": self.matters,
            "tables_before": self.num_before,
            "tables_after": self.num_after,
            **self.counts,
            "thresholds": asdict(self.thresholds),
            "changes": [asdict(change) for change in self.changes[:most]],
        }


def diff_datasets(before: Tables | None, after: Tables, thresholds: DriftThresholds | None = None) -> DatasetDiff:
    """Changes from `before` to `after`; tables are matched by name.

    Args:
        before: dataset that was trained on, or None if there is none.
        after: current dataset.
        thresholds: by default `DriftThresholds()`.
    """
    limits = thresholds or DriftThresholds()
    if before is None:
        return DatasetDiff(changes=(), num_before=0, num_after=len(after), thresholds=limits)
    old, new = ({name: tables.select([t]) for t, name in enumerate(tables.names)} for tables in (before, after))
    changes = [_change(name, old.get(name), new.get(name), limits, before) for name in old | new]
    ordered = sorted((change for change in changes if change), key=lambda change: (-change.weight, change.name))
    return DatasetDiff(changes=tuple(ordered), num_before=len(before), num_after=len(after), thresholds=limits)


def reuse_distance(before: Float[Tensor, " 17"], after: Float[Tensor, " 17"]) -> float:
    """Total variation distance of two reuse histograms: the share of distinct rows that change their bin, 0 to 1.

    The distance of an unused table (all zeros) to a used one is 1.
    """
    p, q = before.double(), after.double()
    return 0.5 * float((p - q).abs().sum() + (p.sum() - q.sum()).abs())


def pooling_drift(before: float, after: float) -> float:
    """Relative change of the pooling factor; infinite for a table that was unused before."""
    if before == after:
        return 0.0
    return abs(after - before) / before if before > 0 else math.inf


def _reaches(change: float, threshold: float) -> bool:
    """Whether there is a change of at least the threshold."""
    return change > 0 and change >= threshold


def _change(
    name: str, old: Tables | None, new: Tables | None, limits: DriftThresholds, before: Tables
) -> TableChange | None:
    """The change of one table, or None; `before` is the whole earlier dataset."""
    rows, dim, pooling = ((_one(old, field), _one(new, field)) for field in ("rows", "dim", "pooling_factor"))
    reuse = 0.0 if old is None or new is None else reuse_distance(old.bins[0], new.bins[0])
    kind: Kind
    if old is None or new is None:
        kind = "added" if old is None else "removed"
    elif rows[0] != rows[1] or dim[0] != dim[1]:
        kind = "resized"
    elif _reaches(pooling_drift(*pooling), limits.pooling) or _reaches(reuse, limits.reuse):
        kind = "drifted"
    else:
        return None
    work = (pooling[0] * dim[0], pooling[1] * dim[1])
    changed_work = max(abs(work[1] - work[0]), reuse * max(work)) / max(_total(before, "pooling_factor"), 1e-12)
    changed_memory = abs(rows[1] * dim[1] - rows[0] * dim[0]) / _total(before, "rows")
    return TableChange(
        name=name,
        kind=kind,
        rows=(int(rows[0]), int(rows[1])),
        dim=(int(dim[0]), int(dim[1])),
        pooling_factor=pooling,
        reuse=reuse,
        weight=max(changed_work, changed_memory),
    )


def _one(table: Tables | None, field: str) -> float:
    return 0.0 if table is None else float(getattr(table, field)[0])


def _total(tables: Tables, field: str) -> float:
    return float((getattr(tables, field).double() * tables.dim).sum())


def _row(change: TableChange) -> dict[str, str]:
    def pair(values: tuple[float | int, float | int]) -> str:
        texts = [f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" for value in values]
        if change.kind in ("added", "removed"):
            return texts[change.kind == "added"]
        return texts[0] if values[0] == values[1] else f"{texts[0]} -> {texts[1]}"

    return {
        "table": change.name,
        "change": change.kind,
        "rows": pair(change.rows),
        "dim": pair(change.dim),
        "pooling factor": pair(change.pooling_factor),
        "reuse moved": "-" if change.kind in ("added", "removed") else f"{change.reuse:.1%}",
        "share of the dataset": f"{change.weight:.2%}",
    }
