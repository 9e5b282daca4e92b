"""TorchRec's planner among the placers of an evaluation: which of its forms takes part, and by which bandwidths it plans."""

from collections.abc import Sequence
from dataclasses import replace

from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.placer import Placer
from dreamshard.rivals import OF_TORCHREC, installed_rivals, rival
from dreamshard.search import DreamShardPlacer
from dreamshard.tasks import PlacementTask
from flows.decisions.contestants import Contestants, without_room

MOST_IN_COLUMNS = 150
"""Tables of a task up to which columns are planned unasked: 160 on 8 devices take TorchRec's planner 10 s, 200 take it 17 s
(RESULTS.md, "Sweep"); more devices hardly matter."""


def with_torchrec_planner(
    contestants: Contestants, tasks: Sequence[PlacementTask], spec: AcceleratorSpec | None
) -> Contestants:
    """The contestants, in which TorchRec's planner assumes the testbed's bandwidths; it meets every candidate.

    It is added to a candidate's evaluation wherever torchrec is installed, unless it finds no placement for a task: of whole
    tables, and where the candidate may split tables also of columns. Planning columns takes seconds, so with large tasks
    they are left out, and a note says so.

    Args:
        spec: bandwidths and hosts that the planner assumes; None for its defaults.
    """
    named = [name for name in OF_TORCHREC if name in contestants.placers]
    wanted, note = _unasked(contestants, tasks)
    added = {name: rival(name, None, spec=spec) for name in wanted if name not in named}
    unfit = without_room(added, tasks)
    names = [name for name in OF_TORCHREC if name in named or name in added.keys() - unfit]
    if not names:
        return contestants
    last = {*contestants.predictors, contestants.candidate}
    models = {each: placer for each, placer in contestants.placers.items() if each in last}
    others = {each: placer for each, placer in contestants.placers.items() if each not in models}
    planners = {name: rival(name, None, spec=spec) for name in names}
    return replace(
        contestants,
        placers={**others, **planners, **models},
        has_default_bandwidths=spec is None,
        notes=(*contestants.notes, *([note] if note else [])),
    )


def _unasked(contestants: Contestants, tasks: Sequence[PlacementTask]) -> tuple[list[str], str]:
    """Its forms that take part without being named, and a sentence about one left out; empty where there is none."""
    whole, columns = OF_TORCHREC
    if contestants.candidate is None or whole not in installed_rivals():
        return [], ""
    if not _may_split(contestants.placers[contestants.candidate]):
        return [whole], ""
    most = max(len(task.tables) for task in tasks)
    if most <= MOST_IN_COLUMNS or columns in contestants.placers:
        return [whole, columns], ""
    return [whole], (
        f"{columns} was left out: a task has {most} tables, and beyond {MOST_IN_COLUMNS} TorchRec's planner takes more than "
        f"about 10 seconds to plan columns for one; to measure it all the same, name it in `dreamshard compare`"
    )


def _may_split(placer: Placer) -> bool:
    """Whether a placer may split tables by columns."""
    return isinstance(placer, DreamShardPlacer) and placer.columns and placer.inference == "search"
