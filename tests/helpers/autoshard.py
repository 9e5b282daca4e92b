"""AutoShard trained on a tiny configuration."""

from functools import cache

import torch

from dreamshard.autoshard import AutoShardConfig, AutoShardState, make_placer, start_training
from tests.helpers.tables import pool_of
from tests.helpers.trained import rounds

TINY_AUTOSHARD = AutoShardConfig(
    iterations=3,
    placements_per_iteration=4,
    cost_steps=20,
    cost_batch=16,
    policy_updates=3,
    updates_per_behaviour=2,
    episodes=6,
)


@cache
@torch.enable_grad()
def learnt_autoshard() -> AutoShardState:
    """A state after two rounds of a short run; read-only."""
    return rounds(start_training(pool_of(24), TINY_AUTOSHARD, seed=0), 2)[0]


def learnt_autoshard_placer():
    """The placer of `learnt_autoshard()`."""
    return make_placer(learnt_autoshard())
