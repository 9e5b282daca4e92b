"""What devices hold and wait for beside the tables that a search places."""

from dataclasses import dataclass

from dreamshard.cost_model.evaluator import Array, Indices


@dataclass(frozen=True)
class Background:
    """Shards that stay where they are while others are placed.

    Attributes:
        sums: `[D, L]` latents.
        own_ms: `[D]` of collectives, beside the all-to-all.
        used_bytes: `[D]`.
    """

    sums: Array
    own_ms: Array
    used_bytes: Indices
