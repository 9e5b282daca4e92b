"""Takes the cells of a sweep from a home into a kept folder, one complete experiment at a time."""

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from dreamshard.sweep import Cell, Sweep
from storage.lake.parquet_files import read_parquet
from storage.lake.sweep_results import read_results

_CHANGED = "-dirty"  # ends the revision of a checkout that differs from its commit


def cell_name(path: Path) -> str:
    """The cell of a file of results."""
    return path.stem.rpartition("-")[0]


def take(home: Path, sweep: Sweep, folder: Path) -> list[str]:
    """Replace kept cells by those that are done in a home.

    An experiment is replaced if one commit has all of its cells that the folder has, by the present design; cells of changed
    files are of no commit and are left. If several commits have them all, the last one counts.

    Args:
        home: of `dreamshard sweep`.
        sweep: whose cells are kept.
        folder: of the kept cells.

    Returns:
        For each experiment, what was done.

    Raises:
        ValueError: the home has no cells of the sweep, or none of its experiments is complete.
    """
    found, said, taken = _done(home, sweep), [], 0
    for experiment in dict.fromkeys(cell.experiment for cell in sweep.cells):
        names = {cell.name for cell in sweep.cells if cell.experiment == experiment}
        old = [path for path in folder.glob("*.parquet") if cell_name(path) in names]
        wanted = {cell_name(path) for path in old}
        by_commit = found.get(experiment, {})
        commit = next((commit for commit in reversed(by_commit) if wanted <= by_commit[commit].keys()), None)
        if commit is None:
            said.append(f"{experiment}: kept as it was, since {_lacking(wanted, by_commit)}")
            continue
        _replace(old, list(by_commit[commit].values()), folder)
        said.append(f"{experiment}: took {len(by_commit[commit])} cells of commit {commit}")
        taken += 1
    if not taken:
        raise ValueError(
            f"the home {home} completes no experiment, so nothing was replaced ({'; '.join(said)}); run `dreamshard sweep` "
            "to its end there, from a checkout without changes"
        )
    return said


def _done(home: Path, sweep: Sweep) -> Mapping[str, dict[str, dict[str, Path]]]:
    """Files by experiment, commit and cell, the commit whose last cell is newest at the end."""
    source = home / "lake" / "sweeps" / sweep.name
    paths = sorted(source.glob("*.parquet"))
    cells = {cell.name: cell for cell in sweep.cells}
    if not any(cell_name(path) in cells for path in paths):
        raise ValueError(
            f"{source} has no cells of the sweep {sweep.name}, so there is nothing to take; check the home, or run "
            f"`dreamshard sweep --recipe {sweep.name} --tables test` there"
        )
    dated = []
    for path in paths:
        cell = cells.get(cell_name(path))
        if cell is not None and _is_whole(path, cell):
            origin = read_parquet(path, ["created_at", "commit"]).to_pylist()[0]
            dated.append((origin["created_at"], origin["commit"], cell, path))
    found: dict[str, dict[str, dict[str, Path]]] = defaultdict(dict)
    for _, commit, cell, path in sorted(dated, key=lambda each: each[0]):
        if not commit.endswith(_CHANGED):
            of_experiment = found[cell.experiment]
            of_experiment[commit] = {**of_experiment.pop(commit, {}), cell.name: path}
    return found


def _is_whole(path: Path, cell: Cell) -> bool:
    """Whether results are of all systems and tasks of a cell; those of the short form or of an earlier design may not be."""
    results = read_results(path)
    tasks = sum(cell.tasks_of(size) for size in cell.placed)
    return {each.placer for each in results} == {*cell.systems} and len(results) == tasks * len(cell.systems)


def _lacking(wanted: set[str], by_commit: Mapping[str, Mapping[str, Path]]) -> str:
    if not by_commit:
        return "the home has no cell of a commit with all systems and tasks of the present design"
    commit = max(by_commit, key=lambda each: len(wanted & by_commit[each].keys()))
    missing = sorted(wanted - by_commit[commit].keys())
    return f"commit {commit} lacks {len(missing)} of {len(wanted)} cells, first {missing[0]}"


def _replace(old: Sequence[Path], new: Sequence[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in new:
        shutil.copyfile(path, folder / path.name)
    for path in {*old} - {folder / path.name for path in new}:
        path.unlink()
