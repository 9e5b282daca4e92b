"""What changed between two datasets: tables added, removed, resized, or looked up in another way.

Pure: whoever calls decides which datasets to compare and what follows. Whether a change matters is a matter of thresholds,
since every new batch of lookups counts a little differently.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from dreamshard.tables import Tables

Kind = Literal["added", "removed", "resized", "drifted"]
KINDS: tuple[Kind, ...] = ("added", "removed", "resized", "drifted")


@dataclass(frozen=True, kw_only=True)
class DriftThresholds:
    """From where on a change counts.

    Attributes:
        pooling: relative change of a table's pooling factor from which on it has drifted; 0.1 for 10 %, 0 for any change.
        reuse: distance of its reuse histograms (`reuse_distance`) from which on it has drifted; 0 for any.
        share: share of the tables that must be added, removed, resized or drifted before the dataset as a whole matters;
            0 for any of them, 1 for all.

    Raises:
        ValueError: a threshold is not a number from 0 on.
    """

    pooling: float = 0.1
    reuse: float = 0.1
    share: float = 0.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(
                    f"the threshold {each.name} is {value}, but nothing can change by that; give 0 or more"
                )


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """One table that is not what it was.

    Attributes:
        name: of the table.
        kind: what happened to it; a table that was resized may have drifted too.
        rows: before and after; 0 where there is no such table.
        dim: the same.
        pooling_factor: the same.
        reuse: distance of the histograms of row reuse, 0 to 1; 0 for a table that is there only once.
        weight: how much of the dataset it touches: the larger of its changed shares of work (pooling factor x dim) and of
            memory (rows x dim), both of what there was before.
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
    """Two datasets side by side.

    Attributes:
        changes: the tables that changed, those that touch most first.
        num_before: tables of the earlier dataset; 0 where there is none.
        num_after: tables of the later one.
        thresholds: by which tables count as drifted.
    """

    changes: tuple[TableChange, ...]
    num_before: int
    num_after: int
    thresholds: DriftThresholds

    @property
    def matters(self) -> bool:
        """Whether so much changed that a placer trained before should be trained again."""
        if self.num_before == 0:
            return True
        return _reaches(len(self.changes) / max(self.num_before, self.num_after), self.thresholds.share)

    @property
    def counts(self) -> dict[str, int]:
        """How many tables changed, by kind."""
        return {kind: sum(change.kind == kind for change in self.changes) for kind in KINDS}

    @property
    def sentence(self) -> str:
        """What changed, in one sentence."""
        if self.num_before == 0:
            return f"{self.num_after} tables, none of which has been trained on yet"
        if not self.changes:
            return f"none of the {self.num_after} tables changed by as much as the thresholds"
        said = ", ".join(f"{count} {kind}" for kind, count in self.counts.items() if count)
        worst = self.changes[0]
        return (
            f"{said} (of {self.num_before} tables before, {self.num_after} now), most of all {worst.name}, {worst.kind}"
        )

    def rows(self, most: int | None = None) -> list[dict[str, str]]:
        """The changes as rows of a table for people, the most touched first; at most so many, or all."""
        return [_shown(change) for change in self.changes[:most]]

    def payload(self, most: int = 50) -> dict[str, Any]:
        """The difference for programs, in plain types; `changes` holds the first `most`, the counts speak of all."""
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
    """What changed from `before` to `after`; tables are the same where their names are.

    Args:
        before: what was trained on, or None where nothing was.
        after: what there is now.
        thresholds: by default `DriftThresholds()`.
    """
    limits = thresholds or DriftThresholds()
    if before is None:
        return DatasetDiff(changes=(), num_before=0, num_after=len(after), thresholds=limits)
    old, new = ({table.names[0]: table for table in _singles(tables)} for tables in (before, after))
    touched = (_change(name, old.get(name), new.get(name), limits, before) for name in old | new)
    changes = sorted((each for each in touched if each), key=lambda change: (-change.weight, change.name))
    return DatasetDiff(changes=tuple(changes), num_before=len(before), num_after=len(after), thresholds=limits)


def reuse_distance(before: Float[Tensor, " 17"], after: Float[Tensor, " 17"]) -> float:
    """Total variation distance of two histograms of row reuse: the share of distinct rows that change their bin, 0 to 1.

    A table that nobody looked up (all zeros) and one that is looked up are 1 apart.
    """
    p, q = before.double(), after.double()
    return 0.5 * float((p - q).abs().sum() + (p.sum() - q.sum()).abs())


def pooling_drift(before: float, after: float) -> float:
    """Change of the pooling factor relative to what it was; infinite for a table that nobody looked up before."""
    if before == after:
        return 0.0
    return abs(after - before) / before if before > 0 else math.inf


def _reaches(change: float, threshold: float) -> bool:
    """Whether there is a change, and it is as large as the threshold."""
    return change > 0 and change >= threshold


def _change(
    name: str, old: Tables | None, new: Tables | None, limits: DriftThresholds, before: Tables
) -> TableChange | None:
    """What happened to one table; `before` is all of the earlier dataset."""
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
    touched_work = max(abs(work[1] - work[0]), reuse * max(work)) / max(_total(before, "pooling_factor"), 1e-12)
    touched_memory = abs(rows[1] * dim[1] - rows[0] * dim[0]) / _total(before, "rows")
    return TableChange(
        name=name,
        kind=kind,
        rows=(int(rows[0]), int(rows[1])),
        dim=(int(dim[0]), int(dim[1])),
        pooling_factor=pooling,
        reuse=reuse,
        weight=max(touched_work, touched_memory),
    )


def _singles(tables: Tables) -> list[Tables]:
    return [tables.select([t]) for t in range(len(tables))]


def _one(table: Tables | None, field: str) -> float:
    return 0.0 if table is None else float(getattr(table, field)[0])


def _total(tables: Tables, field: str) -> float:
    return float((getattr(tables, field).double() * tables.dim).sum())


def _shown(change: TableChange) -> dict[str, str]:
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
