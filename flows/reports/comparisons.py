"""The report of a comparison of any placers, `<store>/comparisons/<key>.json`, and who may take part."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from dreamshard.baselines import baselines
from dreamshard.evaluation import EvaluationRow, mean_overall_ms, paired_comparison, prediction_figures
from dreamshard.peers import PEERS, peer, peers
from dreamshard.placer import Placer
from dreamshard.search import DreamShardPlacer, GreedyCostPlacer
from dreamshard.tasks import PlacementTask
from flows.reports.evaluations import plain
from storage.filesystem import AnyPath, write_json
from storage.mlflow_store import registry
from storage.settings import Settings
from storage.store import open_store

Report = dict[str, Any]
"""`key`, `testbed`, `reference`, `versions`, `heldout`, `summary` (one per placer), `comparisons`, `rows`, ..."""


def label(version: str) -> str:
    """What a comparison calls a version."""
    return f"version {version}"


def resolve(names: Sequence[str], *, with_peers: bool) -> dict[str, str | None]:
    """Who takes part: what the comparison calls each placer, and its version where it is a registered one.

    Args:
        names: versions, aliases, rules of thumb, cost_greedy, published rivals; two names of one version count once.
        with_peers: all published rivals as well.

    Raises:
        ValueError: there is no such version or placer, no version is among them, or there are fewer than two.
    """
    others = [*baselines(), "cost_greedy", *PEERS]
    found: dict[str, str | None] = {}
    for name in [*names, *(peers_there() if with_peers else ())]:
        if name in others:
            found[name] = None
        elif name in registry.ALIASES or name.isdigit():
            number = registry.resolve(Settings.load(), name)
            found[label(number)] = number
        else:
            raise ValueError(
                f"there is no placer {name!r}, so it cannot be compared; give {', '.join(registry.ALIASES)}, a version's "
                f"number, or one of {sorted(others)}"
            )
    if not any(found.values()):
        raise ValueError(
            "no version is among the placers to compare, and its cost network predicts what the rest is judged by; name "
            "at least one, e.g. champion (`dreamshard models` lists them)"
        )
    if len(found) < 2:
        raise ValueError(f"{next(iter(found))} alone cannot be compared; name another version, or e.g. lookup_greedy")
    return found


def identities(who: Mapping[str, str | None]) -> list[str]:
    """Who takes part, in words that mean the same placers in every registry of a store: version 1 is another's elsewhere."""
    settings = Settings.load()
    return [name if version is None else registry.model_of(settings, version) for name, version in who.items()]


def peers_there() -> list[str]:
    """The published rivals that can run here: TorchRec's planner needs torchrec."""
    from importlib.util import find_spec

    return [name for name in PEERS if name != "torchrec_planner" or find_spec("torchrec") is not None]


def placers(who: Mapping[str, str | None], train_tasks: Sequence[PlacementTask], seed: int) -> dict[str, Placer]:
    """The placers by the names of `resolve`.

    Args:
        train_tasks: what the rivals that learn are trained on; used where there are any of them.

    Raises:
        ValueError: the files of a version cannot be read, or torchrec is not installed.
    """
    versions = {name: registry.load_placer(version) for name, version in who.items() if version is not None}
    base, rules = next(iter(versions.values())), baselines(seed)
    learned = peers(base, train_tasks, seed) if train_tasks else {}
    found: dict[str, Placer] = {}
    for name in who:
        if name in versions:
            found[name] = versions[name]
        elif name in rules:
            found[name] = rules[name]
        elif name == "cost_greedy":
            found[name] = GreedyCostPlacer(base.cost_network, base.normaliser)
        else:
            found[name] = learned[name] if name in learned else peer(name, base, seed)
    return found


def with_own_predictions(rows: Sequence[EvaluationRow], found: Mapping[str, Placer]) -> list[EvaluationRow]:
    """The rows of each version with what its own cost network says; those of the others as they are."""
    return [
        replace(row, predicted_ms=placer.predict_overall_ms(row.task, row.placement))
        if isinstance(placer := found[row.placer], DreamShardPlacer)
        else row
        for row in rows
    ]


def make_report(
    key: str,
    rows: Sequence[EvaluationRow],
    who: Mapping[str, str | None],
    found: Mapping[str, Placer],
    facts: Mapping[str, Any],
) -> Report:
    """The figures of `rows`: every pair of placers, and how well each version predicts all that was measured.

    Args:
        facts: what the report says besides, e.g. `testbed`, `dataset`, `tasks`, `heldout`.
    """
    names = list(who)
    pairs = {a: {b: asdict(paired_comparison(rows, a, b)) for b in names if b != a} for a in names}
    return {
        "key": key,
        "reference": names[0],
        "versions": {name: version for name, version in who.items() if version is not None},
        **facts,
        "summary": sorted((_line(name, rows, found[name]) for name in names), key=lambda line: -line["overall_ms"]),
        "comparisons": pairs,
        "rows": [plain(row) for row in rows],
    }


def path(key: str) -> AnyPath:
    """Where the report `key` lies."""
    return open_store().comparisons / f"{key}.json"


def save(report: Report) -> None:
    """Write the report, all of it or nothing."""
    write_json(path(report["key"]), report)


def load(key: str) -> Report:
    """The report `key`."""
    found: Report = json.loads(path(key).read_text(encoding="utf-8"))
    return found


def _line(name: str, rows: Sequence[EvaluationRow], placer: Placer) -> dict[str, Any]:
    own = [row for row in rows if row.placer == name]
    line = {
        "placer": name,
        "overall_ms": mean_overall_ms(rows, name),
        "legal": all(row.legal for row in own),
        "place_ms": sum(row.place_ms for row in own) / len(own),
        "predicted_mape": None,
        "predicted_spearman": None,
    }
    if isinstance(placer, DreamShardPlacer):
        said = [replace(row, predicted_ms=placer.predict_overall_ms(row.task, row.placement)) for row in rows]
        line["predicted_mape"], line["predicted_spearman"] = prediction_figures(said)
    return line
