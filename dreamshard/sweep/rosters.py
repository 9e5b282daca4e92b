"""Which systems take part in which experiment of a sweep, by name (`systems.SYSTEMS`)."""

from dreamshard.peers import OF_TORCHREC

RULES = ("random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")
OTHERS = (
    *("cost_greedy", "dreamshard", "dreamshard_policy", "dreamshard_columns", "paper", "autoshard", "rnn"),
    *("neuroshard", "neuroshard_columns", "neuroshard_predicted", "neuroshard_predicted_columns"),
    *OF_TORCHREC,
)
SLOW = ("rnn_predicted",)
"""Systems that train for a minute and more: at the paper's size, and not in the short form."""
COSTLY = ("autoshard", "neuroshard_predicted_columns", "torchrec_planner_columns")
"""Systems that train or search long: in the short form at the smallest size with mixed dims only."""
COMPLETE = ("cost_greedy", "dreamshard", "dreamshard_policy", "paper")
"""Systems that ablations are compared with."""
WITHOUT_POLICY = "dreamshard_without_policy"
"""The ablation that is also shown by number of measurements: the same search without the policy's placements."""

LEARNED = ("dreamshard", "paper", "autoshard", "neuroshard_predicted")
"""Algorithms that are plotted by transfer, and whose compute is shown beside AutoShard's."""
AT_ANY_SIZE = (
    *("cost_greedy", "dreamshard", "dreamshard_policy", "dreamshard_columns", "paper", "autoshard"),
    *("neuroshard_predicted", "torchrec_planner"),
)
"""Systems of transfer: those whose training serves any number of devices, and TorchRec's planner, which is not trained."""

ON_RANKS = ("cost_greedy", "dreamshard", "dreamshard_policy", "paper", "neuroshard", "torchrec_planner")
"""Systems of the short cell on real ranks, where a measurement takes most of a second; the full ones have two more."""
