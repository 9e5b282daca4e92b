"""AutoShard: Zha et al., "AutoShard: Automated Embedding Table Sharding for Recommender Systems", KDD 2022.

arXiv 2208.06399. It trains in the same steps as DreamShard (`dreamshard.training`). It balances compute, and knows nothing of
all-to-alls. `docs/as-published.md` lists differences from the paper and from the authors' program.

networks    compute of the tables on one device; an LSTM over the tables, and scores of devices
learning    episodes rewarded for balance; actor-critic updates of the policy, with V-trace; the placer
"""

from dreamshard.autoshard.learning import AutoShardPlacer, rollout, update
from dreamshard.autoshard.networks import AutoShardPolicy, ComputeCostNetwork

__all__ = ["AutoShardPlacer", "AutoShardPolicy", "ComputeCostNetwork", "rollout", "update"]
