"""DreamShard's own cost network (arXiv 2210.02023, section 3.1 and appendix B.1), on its 21 features."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamshard.cost_model.cost_data import CostData
from dreamshard.cost_model.cost_network import Architecture, CostNetwork, mlp
from dreamshard.cost_model.evaluator import Array, DeviceCommunication, Loads, mlp_arrays, run_mlp
from dreamshard.cost_model.features import NUM_PAPER_FEATURES


class PaperCostNetwork(CostNetwork):
    """Table MLP 21-128-32, sum, heads 32-64-1; max over devices of the sums, then 32-64-1 for the overall cost.

    The paper predicts no forward communication (its measurement contains the waiting for other devices); here both
    directions move the same bytes, so the one communication head stands for both.
    """

    architecture: Architecture = "paper"
    latent_size = 32

    def __init__(self) -> None:
        super().__init__()
        self.table = mlp((NUM_PAPER_FEATURES, 128, self.latent_size))
        self.heads = nn.ModuleList(mlp((self.latent_size, 64, 1)) for _ in range(3))
        self.overall = mlp((self.latent_size, 64, 1))

    def encode(
        self, normalised: Float[Tensor, "*B F"], ratios: Float[Tensor, "*B 4"] | None = None
    ) -> Float[Tensor, "*B L"]:
        """As published, without an effect of precision, optimizer or batch size."""
        del ratios
        latent: Tensor = self.table(normalised[..., :NUM_PAPER_FEATURES])
        return latent

    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        forward, comm, backward = (head(sums).squeeze(-1) for head in self.heads)  # [*B, D] each
        return torch.stack([forward, comm, comm, backward], dim=-1)

    def overall_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B"]:
        """The overall head on the largest latents."""
        overall: Tensor = self.overall(sums.max(dim=-2).values).squeeze(-1)
        return overall

    def loss(self, data: CostData, chosen: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        """Squared errors of the three heads and of the overall cost."""
        sums, measured = data.sums(self.encode, chosen), data.phases_ms[chosen]
        heads = (self.phases_ms(sums) - measured)[..., [0, 2, 3]].square().mean()
        return heads + (self.overall_ms(sums) - data.overall_ms[chosen]).square().mean()

    def evaluator(self) -> "PaperEvaluator":
        return PaperEvaluator(self)


class PaperEvaluator:
    """`PaperCostNetwork` in NumPy: the effect of one more table is evaluated, since the heads are not linear in it."""

    step_units = 1.0

    def __init__(self, network: PaperCostNetwork) -> None:
        self.forward, self.comm, self.backward = (mlp_arrays(head) for head in network.heads)
        self.latent_size = network.latent_size

    def empty(self, batch: int, num_devices: int) -> Loads:
        """The heads decide what an empty device costs."""
        nothing = np.zeros((1, self.latent_size), np.float32)
        forward, backward, _ = self.compute(nothing)
        shape = (batch, num_devices)
        compute_ms = np.full(shape, forward + backward, np.float32)
        comm_ms = np.full(shape, self._comm_ms(nothing), np.float32)
        sums, rates = (np.zeros((*shape, size), np.float32) for size in (self.latent_size, 0))
        return Loads(sums, compute_ms, comm_ms, rates, np.float32(0))

    def compute(self, sums: Array) -> tuple[Array, Array, Array]:
        forward, backward = (run_mlp(head, sums)[:, 0] for head in (self.forward, self.backward))
        return forward, backward, np.zeros((len(sums), 0), np.float32)

    def with_table(self, loads: Loads, latent: Array) -> tuple[Array, Array]:
        sums = loads.sums + latent[:, None, :]
        return run_mlp(self.forward, sums)[..., 0] + run_mlp(self.backward, sums)[..., 0], self._comm_ms(sums)

    def widest_comm_ms(self, sums: Array, loads: Loads) -> Array:
        del loads
        return self._comm_ms(sums)

    def communication(self, sums: Array) -> DeviceCommunication:
        """The communication head sees one device at a time."""
        return DeviceCommunication(self._comm_ms(sums), np.zeros(len(sums), np.float32), 0.0, 0.0)

    def table_width(self, latents: Array) -> Array:
        """Nothing is shared."""
        return np.zeros(len(latents), np.float32)

    def _comm_ms(self, sums: Array) -> Array:
        comm: Array = 2 * run_mlp(self.comm, sums)[..., 0]
        return comm
