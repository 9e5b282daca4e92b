"""AutoShard: Zha et al., "AutoShard: Automated Embedding Table Sharding for Recommender Systems", KDD 2022.

arXiv 2208.06399. It trains in the same steps as DreamShard (`dreamshard.training`). It balances compute, and knows nothing of
all-to-alls. `docs/as-published.md` lists differences from the paper and from the authors' program.

networks    compute of the tables on one device; an LSTM over the tables, and scores of devices
episodes    tables placed one after another, rewarded for balance; random sets of tables to measure; the placer
learning    actor-critic updates of the policy, with V-trace
"""

from dreamshard.autoshard.episodes import AutoShardPlacer
from dreamshard.autoshard.learning import actor_critic_updates
from dreamshard.autoshard.networks import AutoShardPolicy, ComputeCostNetwork

__all__ = ["AutoShardPlacer", "AutoShardPolicy", "ComputeCostNetwork", "actor_critic_updates"]
