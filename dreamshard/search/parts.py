"""Parts of a trained placer that place by themselves, by name."""

from dataclasses import replace

from dreamshard.placer import Placer
from dreamshard.search.cost_greedy import GreedyCostPlacer
from dreamshard.search.dreamshard_placer import DreamShardPlacer

POLICY = "dreamshard_policy"

PARTS = ("cost_greedy", POLICY)
"""Greedy on its cost network, and its policy without search; both keep tables whole."""


def part_of(name: str, placer: DreamShardPlacer) -> Placer:
    """The part of `placer` that is called `name`, one of `PARTS`."""
    if name == POLICY:
        return replace(placer, inference="policy")
    return GreedyCostPlacer(placer.cost_network, placer.normaliser)
