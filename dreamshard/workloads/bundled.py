"""Workloads that come with the package: Meta's two data sets, which are generated, and published lists of tables."""

from pathlib import Path

DATA = Path(__file__).parent / "data"
META_WORKLOADS = ("meta-dlrm-2021", "meta-dlrm-2022")


def bundled_lists() -> dict[str, Path]:
    """The bundled lists of tables by name; `data/SOURCES.md` gives their sources."""
    return {file.stem: file for file in sorted(DATA.glob("*.csv"))}


def bundled_workloads() -> list[str]:
    """Names of all bundled workloads."""
    return sorted([*META_WORKLOADS, *bundled_lists()])
