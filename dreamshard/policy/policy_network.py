"""DreamShard's policy network (arXiv 2210.02023; `models.py` of the authors' program): a score for each device.

A device's latent is the sum of its tables' latents, which a table MLP computes. Its predicted milliseconds go through
3-64-32 with ReLU after both layers. One linear layer turns both into the device's score; softmax over the legal devices is
the policy. The table that is being placed has no influence on the scores.
"""

from jaxtyping import Float
from torch import Tensor, nn

from dreamshard.cost_model import TableNetwork, mlp

COST_COLUMNS = 3
"""Predicted milliseconds of a device that the policy sees: forward compute, backward compute, one all-to-all."""

_LATENT = 32


class PolicyNetwork(nn.Module):
    """Scores devices by their tables and their predicted costs.

    The score is a sum of a part for the tables and a part for the costs, and the former is a sum over tables, so a step of
    the MDP changes one device's score by one number for its table and one for its new costs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = TableNetwork()
        self.cost = nn.Sequential(*mlp((COST_COLUMNS, 64, _LATENT)), nn.ReLU())
        self.score = nn.Linear(2 * _LATENT, 1)

    def table_scores(self, features: Float[Tensor, "*B F"]) -> Float[Tensor, "*B"]:
        """Each table's part of the score of the device that holds it."""
        scores: Tensor = self.table(features)[..., :-1] @ self.score.weight[0, :_LATENT]
        return scores

    def empty_score(self) -> Float[Tensor, ""]:
        """The tables' part of the score of a device without tables."""
        return self.table.empty() @ self.score.weight[0, :_LATENT]

    def cost_scores(self, costs: Float[Tensor, "*B 3"]) -> Float[Tensor, "*B"]:
        """The part of a device's score for its costs, and the bias."""
        scores: Tensor = self.cost(costs) @ self.score.weight[0, _LATENT:] + self.score.bias
        return scores
