"""Write the sweep's section of RESULTS.md, and its excerpt in README.md, from the cells kept in `data/sweep`.

    python -m tests.benchmarks.kept_sweep [--home DIR]

The cells are what `dreamshard sweep --recipe paper_table --tables test` left below `lake/sweeps/paper_table` of its home;
`--home` takes them from there (`cells_of_home`). Cells of one experiment are of one commit, which the page names; where only
the systems that share dreamshard's training have run again (`renewed_sweep`), of two.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from dreamshard.formatting import markdown_table
from dreamshard.sweep import CellResult, Sweep, summarise
from dreamshard.sweep import sweep as design
from dreamshard.sweep.summary import Figure
from flows.cli.sweep import replaced_section
from flows.reports import sweep_page
from storage.lake.parquet_files import read_parquet
from storage.lake.sweep_results import read_results
from tests.benchmarks.cells_of_home import cell_name, take

FOLDER = Path(__file__).parent / "data" / "sweep"
RESULTS = Path(__file__).parents[2] / "RESULTS.md"
README = RESULTS.with_name("README.md")
EXCERPT = {
    "dreamshard": "dreamshard",
    "paper": "DreamShard as published",
    "neuroshard": "NeuroShard",
    "neuroshard_predicted": "its search, on dreamshard's network",
    "torchrec_planner": "TorchRec's planner",
}
"""Placers of whole tables in README.md, and what they are called there."""


def designed() -> Sweep:
    """The sweep that the kept cells are of."""
    return design("paper_table", split="test")


def kept_results(folder: Path = FOLDER) -> tuple[list[CellResult], dict[str, str]]:
    """What all kept cells found, in the design's order, and the commit of each experiment or part of one.

    Raises:
        ValueError: a file is of no cell of the design, or a system of one experiment is of different commits.
    """
    order = {cell.name: number for number, cell in enumerate(designed().cells)}
    results, commits = [], dict[tuple[str, str], str]()
    found = {path: cell_name(path) for path in folder.glob("*.parquet")}
    if unknown := sorted(path.name for path, name in found.items() if name not in order):
        raise ValueError(f"{unknown[0]} is of no cell of the sweep, so it cannot be shown; remove it from {folder}")
    for path in sorted(found, key=lambda each: order[found[each]]):
        own = read_results(path)
        for result, commit in zip(own, read_parquet(path, ["commit"])["commit"].to_pylist(), strict=True):
            part = result.experiment, result.placer
            if commits.setdefault(part, commit) != commit:
                raise ValueError(
                    f"{result.placer} in {path.name} is of commit {commit}, in other cells of {result.experiment} of "
                    f"{commits[part]}, and a row of a table is of one commit; keep only those of one"
                )
        results += own
    return results, _parts(commits)


def _parts(commits: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """The commit of each experiment, and where it has two, of the systems that ran again (`renewed_sweep`) and the others.

    Args:
        commits: by experiment and placer.
    """
    parts = dict[str, str]()
    for experiment in dict.fromkeys(experiment for experiment, _ in commits):
        own = {placer: commit for (of, placer), commit in commits.items() if of == experiment}
        if len({*own.values()}) == 1:
            parts[experiment] = own["dreamshard"]
            continue
        renewed = own.pop("dreamshard")
        (other,) = {*own.values()} - {renewed}
        parts[f"{experiment}: dreamshard and all that share its training"] = renewed
        parts[f"{experiment}: the others, and all times"] = other
    return parts


def section(pictures: dict[str, str] | None = None) -> str:
    """The figures as Markdown."""
    results, commits = kept_results()
    return sweep_page.markdown_of(designed(), results, pictures, commits)


def excerpt() -> str:
    """What the placers of `EXCERPT` save over the best rule of thumb at each size, and at 800x128 trained at 50x4."""
    figures = summarise(kept_results()[0])
    at_sizes = [figure for figure in figures if figure.setting.experiment == "sizes"]
    moved = [
        figure
        for figure in figures
        if (figure.setting.experiment, figure.setting.trained, figure.setting.placed) == ("transfer", "50x4", "800x128")
    ]
    settings = dict.fromkeys(figure.setting for figure in (*at_sizes, *moved))
    rows = []
    for setting in sorted(settings, key=lambda each: (each.dims, *_tables_and_devices(each.placed))):
        own = [figure for figure in (*at_sizes, *moved) if figure.setting == setting]
        size = (
            setting.placed if setting.placed == setting.trained else f"{setting.placed}, trained at {setting.trained}"
        )
        saved = {called: _saved(own, placer) for placer, called in EXCERPT.items()}
        rows.append({"tables x devices": size, "dims": "16" if setting.dims == "dim16" else setting.dims, **saved})
    return markdown_table(rows)


def _tables_and_devices(size: str) -> tuple[int, int]:
    tables, _, devices = size.partition("x")
    return int(tables), int(devices)


def _saved(figures: Sequence[Figure], placer: str) -> str:
    gain = next((figure.gain for figure in figures if figure.placer == placer), None)
    if gain is None:
        return "-"
    if gain.mean is None or gain.low is None or gain.high is None:
        return "did not fit"
    return f"{100 * gain.mean:.1f} % ({100 * gain.low:.1f} to {100 * gain.high:.1f})"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.kept_sweep", description=str(__doc__).split("\n", 1)[0]
    )
    parser.add_argument(
        "--home", type=Path, help="take the cells that are done there, one complete experiment at a time"
    )
    home = parser.parse_args().home
    if home is not None:
        print("\n".join(take(home, designed(), FOLDER)))
    markdown = section(sweep_page.write_pictures(kept_results()[0], RESULTS))
    for file, own in ((RESULTS, markdown), (README, excerpt())):
        file.write_text(replaced_section(file.read_text(encoding="utf-8"), own, file), encoding="utf-8")


if __name__ == "__main__":
    main()
