"""AutoShard: Zha et al., "AutoShard: Automated Embedding Table Sharding for Recommender Systems", KDD 2022.

arXiv 2208.06399. It trains in the same steps as DreamShard (`dreamshard.training`). It balances compute, and knows nothing of
all-to-alls. `docs/as-published.md` lists differences from the paper and from the authors' program.

networks    compute of the tables on one device; an LSTM over the tables, and scores of devices
episodes    tables placed one after another, many episodes at once, rewarded for balance; random sets of tables to measure
learning    actor-critic updates of the policy
vtrace      off-policy correction
placer      places by the trained policy
"""

from dreamshard.autoshard.learning import actor_critic_updates
from dreamshard.autoshard.networks import AutoShardPolicy, ComputeCostNetwork
from dreamshard.autoshard.placer import AutoShardPlacer

__all__ = ["AutoShardPlacer", "AutoShardPolicy", "ComputeCostNetwork", "actor_critic_updates"]
