"""Placers by name, for `dreamshard place`."""

from typing import TYPE_CHECKING, Any

from flows.cli import terminal

if TYPE_CHECKING:
    from dreamshard.placer import Placer
    from dreamshard.search import DreamShardPlacer
    from storage.store import Store


def find_placer(store: "Store", name: str) -> "tuple[Placer, str]":
    """The placer called `name`, and its name in a plan.

    Raises:
        ValueError: there is no such placer; the message lists the existing ones.
    """
    from dreamshard.baselines import baselines
    from dreamshard.peers import LEARNED, PEERS, peer
    from dreamshard.recipes import RECIPES
    from dreamshard.search import GreedyCostPlacer
    from dreamshard.shard_profiling.bundled_placers import bundled_names, load_bundled
    from storage.mlflow_store import registry

    rules: dict[str, Any] = dict(baselines())
    if name in rules:
        return rules[name], name
    if name == "cost_greedy":
        champion = _champion(store)
        if champion is None:
            raise ValueError(
                "cost_greedy places by a trained cost network and there is none; train one with `dreamshard run`, or give "
                "a rule of thumb, which needs none"
            )
        return GreedyCostPlacer(champion.cost_network, champion.normaliser), name
    if name in PEERS:
        rival = peer(name, _champion(store))
        if name in LEARNED:
            terminal.note(
                f"{name}: trains on these tables alone, by the champion's predicted costs; seconds to minutes"
            )
        return rival, name
    own = [store.settings.home / "placers"]
    if f"{name}_costs" in RECIPES or name in bundled_names(own):
        bundled = load_bundled(name, own)
        terminal.note(f"{name}: {bundled}")
        return bundled.placer, f"dreamshard {name}"
    if name not in registry.ALIASES and not name.isdigit():
        raise ValueError(
            f"there is no placer {name!r}, so nothing can place the tables; give {', '.join(registry.ALIASES)}, a "
            f"version's number, h200, or one of {sorted([*rules, *PEERS, 'cost_greedy'])}"
        )
    try:
        return registry.load_placer(name, store.settings), f"dreamshard {name}"
    except ValueError as error:
        raise ValueError(f"{error}; --placer also takes a rule of thumb, e.g. {', '.join(sorted(rules))}") from error


def cost_predictor(store: "Store", placer: "Placer") -> "DreamShardPlacer | None":
    """The placer that predicts costs: `placer` if it can, else the champion if there is one."""
    from dreamshard.search import DreamShardPlacer

    if isinstance(placer, DreamShardPlacer):
        return placer
    try:
        return _champion(store)
    except ValueError as error:
        terminal.note(f"no cost is predicted: the champion cannot be loaded: {error}")
        return None


def _champion(store: "Store") -> "DreamShardPlacer | None":
    """The champion, or None before the first.

    Raises:
        ValueError: its files are gone or damaged.
    """
    from storage.mlflow_store import registry

    return None if registry.champion(store.settings) is None else registry.load_placer("champion", store.settings)
