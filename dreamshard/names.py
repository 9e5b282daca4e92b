"""Names and numbers that files and registries are made of; without torch, which reading those does without."""

from typing import Literal, get_args

Algorithm = Literal["dreamshard", "paper", "autoshard"]
"""What can be trained: this project's networks and search, DreamShard as published, AutoShard as published."""

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

DEFAULT_ALGORITHM: Algorithm = "dreamshard"

PHASES = ("forward_compute", "forward_comm", "backward_comm", "backward_compute")
"""Of a training step on every device, in the order in which they run; the last axis of a stacked cost tensor."""

NUM_BINS = 17
"""Access-count bins: (0,1], (1,2], (2,4], ... (16384,32768], (32768, inf)."""

SIMULATED = "simulated"
"""The testbed that computes costs without any device; the hardware that it states starts with this name."""


def is_simulated(hardware: str) -> bool:
    """Whether costs of this hardware were computed without any device."""
    return hardware.startswith(f"{SIMULATED} ")
