"""Every placer on random tasks: legal or proved impossible, in any order of tables, with more memory, by many threads."""

from dreamshard.tasks import PlacementTask
from tests.chaos.survived import Survived
from tests.helpers.placer_properties import PLACERS, broken_properties, drawn_task, thread_differences

TASKS = 40  # for each placer
_LARGEST_SEED = 2**31


def run(scale: float, seed: int) -> list[Survived]:
    """A row for each placer."""
    count = max(1, round(TASKS * scale))
    seeds = [(seed + i) % _LARGEST_SEED for i in range(count)]
    rows = []
    for name in PLACERS:
        broken = {}
        for each in seeds:
            task = drawn_task(each)
            found = broken_properties(name, task) or thread_differences_of(name, task)
            if found:
                broken[each] = found
        note = "; ".join(f"seed {each}: {why}" for each, why in broken.items())
        rows.append(
            Survived(what=f"random tasks placed by `{name}`", tried=count, survived=count - len(broken), note=note)
        )
    return rows


def thread_differences_of(name: str, task: PlacementTask) -> str:
    """See `thread_differences`; nothing where the placer finds no placement at all."""
    try:
        return thread_differences(name, task)
    except ValueError:  # proved impossible, which `broken_properties` has looked at
        return ""
