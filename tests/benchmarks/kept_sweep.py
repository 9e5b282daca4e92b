"""Write the sweep's section of RESULTS.md from the cells kept in `data/sweep`, without training anything.

    python -m tests.benchmarks.kept_sweep [RESULTS.md]

The cells are what `dreamshard sweep --recipe paper_table --tables test` left below `lake/sweeps/paper_table` of its home.
Cells of one experiment are of one commit, which the page names.
"""

import argparse
from pathlib import Path

from dreamshard.sweep import CellResult, Sweep
from dreamshard.sweep import sweep as design
from flows.cli.sweep import replaced_section
from flows.reports import sweep_page
from storage.lake.parquet_files import read_parquet
from storage.lake.sweep_results import read_results

FOLDER = Path(__file__).parent / "data" / "sweep"
RESULTS = Path(__file__).parents[2] / "RESULTS.md"


def designed() -> Sweep:
    """The sweep that the kept cells are of."""
    return design("paper_table", split="test")


def kept_results(folder: Path = FOLDER) -> tuple[list[CellResult], dict[str, str]]:
    """What all kept cells found, in the design's order, and the commit of each experiment.

    Raises:
        ValueError: a file is of no cell of the design, or cells of one experiment are of different commits.
    """
    order = {cell.name: number for number, cell in enumerate(designed().cells)}
    results, commits = [], dict[str, str]()
    found = {path: path.stem.rpartition("-")[0] for path in folder.glob("*.parquet")}
    if unknown := sorted(path.name for path, name in found.items() if name not in order):
        raise ValueError(f"{unknown[0]} is of no cell of the sweep, so it cannot be shown; remove it from {folder}")
    for path in sorted(found, key=lambda each: order[found[each]]):
        own = read_results(path)
        (commit,) = set(read_parquet(path, ["commit"])["commit"].to_pylist())
        if commits.setdefault(own[0].experiment, commit) != commit:
            raise ValueError(
                f"{path.name} is of commit {commit}, other cells of {own[0].experiment} are of "
                f"{commits[own[0].experiment]}, and a table is of one commit; keep only those of one"
            )
        results += own
    return results, commits


def section(pictures: dict[str, str] | None = None) -> str:
    """The figures as Markdown."""
    results, commits = kept_results()
    return sweep_page.markdown_of(designed(), results, pictures, commits)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.kept_sweep", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("file", nargs="?", type=Path, default=RESULTS, help="default: RESULTS.md of this checkout")
    file: Path = parser.parse_args().file
    markdown = section(sweep_page.write_pictures(kept_results()[0], file))
    file.write_text(replaced_section(file.read_text(encoding="utf-8"), markdown, file), encoding="utf-8")


if __name__ == "__main__":
    main()
