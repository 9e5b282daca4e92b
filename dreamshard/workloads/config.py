"""Which tables to ingest, as a recipe names them, and the workloads that come with the package.

Meta's two data sets are generated; `data/SOURCES.md` gives the sources of the published lists of tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

DATA = Path(__file__).parent / "data"
META_WORKLOADS = ("meta-dlrm-2021", "meta-dlrm-2022")


@cache
def bundled_lists() -> Mapping[str, Path]:
    """The bundled lists of tables by name."""
    return MappingProxyType({file.stem: file for file in sorted(DATA.glob("*.csv"))})


def bundled_workloads() -> list[str]:
    """Names of all bundled workloads."""
    return sorted([*META_WORKLOADS, *bundled_lists()])


def list_file(source: str) -> Path | None:
    """The local file of a list of tables, bundled or the user's own; None for other sources."""
    path = bundled_lists().get(source, Path(source))
    return path if path.suffix in (".csv", ".parquet", ".json") and path.is_file() else None


@dataclass(frozen=True, kw_only=True)
class WorkloadConfig:
    """Which tables to ingest.

    Attributes:
        source: a bundled workload's name, or a path or URI (`s3://bucket/tables/`) of a file or folder. Files are
            Meta's `.pt` or `.pt.gz`, Criteo's `.tsv` or `.tsv.gz`, or a list of tables as `.csv`, `.parquet` or
            `.json` (a TorchRec config); `folder.py` describes folders. Or a function that returns a TorchRec model:
            `model.py:make_model`.
        batches: function that returns sample batches of the model's features, `data.py:make_batches`; None for Zipf lookups.
        num_batches: of these to read, all of whose samples count; None for as many as `batch_size` takes.
        num_tables: number of tables to take, or None for all.
        max_table_bytes: size limit of a table as fp32 weights, or None.
        batch_size: training samples per batch of lookups: the source's first ones, fewer if a file has fewer.
        dim: one dimension for every table; `mixed` to draw dims from 4 to 128 per table; None for the source's own.
        unknown_dim: used if `dim` is None and the source knows no dims: a dimension, or `mixed`.
        seed: of the draws of tables, dims and lookups.

    Raises:
        ValueError: a count is not positive, or a dimension is neither a multiple of 4, `mixed` nor None.
    """

    source: str = "meta-dlrm-2021"
    batches: str | None = None
    num_batches: int | None = None
    num_tables: int | None = None
    max_table_bytes: int | None = None
    batch_size: int = 65_536
    dim: int | str | None = "mixed"
    unknown_dim: int | str = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_tables", "max_table_bytes", "batch_size", "num_batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, so no table or no sample would be left; give at least 1")
        for dim in (self.dim, self.unknown_dim):
            if isinstance(dim, str) and dim != "mixed":
                raise ValueError(f"dim is {dim!r}; give a number, 'mixed', or nothing to keep the source's own dims")
            if isinstance(dim, int) and (dim < 4 or dim % 4):
                raise ValueError(f"dim is {dim}, but the fused operator takes multiples of 4; round it up")
