"""AutoShard: Zha et al., "AutoShard: Automated Embedding Table Sharding for Recommender Systems", KDD 2022.

arXiv 2208.06399. It is a system beside DreamShard with the same steps of training. It balances compute, and knows nothing of
all-to-alls. `docs/as-published.md` lists what differs from the paper and from the authors' program.

config          settings of a training
training        its steps: propose placements, fit the cost network, improve the policy
proposals       placements whose devices hold random sets of tables
cost_network    compute of the tables on one device, and its fit
policy_network  LSTM over the tables, scores of devices, value estimate
episodes        tables placed one after another, many episodes at once, rewarded for balance
learning        actor-critic updates of the policy
vtrace          off-policy correction
placer          places by the trained policy
model_files     placers and training states as folders
"""

from dreamshard.autoshard.config import AutoShardConfig
from dreamshard.autoshard.model_files import load_placer, load_state, save_placer, save_state
from dreamshard.autoshard.placer import AutoShardPlacer
from dreamshard.autoshard.training import (
    AutoShardState,
    continue_from,
    fit_costs,
    improve_policy,
    make_placer,
    propose,
    start_training,
)

__all__ = [
    "AutoShardConfig",
    "AutoShardPlacer",
    "AutoShardState",
    "continue_from",
    "fit_costs",
    "improve_policy",
    "load_placer",
    "load_state",
    "make_placer",
    "propose",
    "save_placer",
    "save_state",
    "start_training",
]
