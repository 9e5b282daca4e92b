"""Build published rivals by name. A name that ends in `_columns` may split tables by columns; all others keep them whole."""

from importlib.util import find_spec

from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.placer import Placer
from dreamshard.rivals.neuroshard import NeuroShardPlacer
from dreamshard.rivals.torchrec_planner import COLUMNS, WHOLE, TorchRecPlanner
from dreamshard.search import DreamShardPlacer

MEASURING = "rnn"
"""The rival that measures placements in order to learn; `train_rnn` builds it."""

ON_NETWORK = ("neuroshard", "neuroshard_columns")
"""Rivals that search on a network that predicts what steps cost."""

OF_TORCHREC = (WHOLE, COLUMNS)
"""TorchRec's planner, which is only there if torchrec is."""

RIVALS = (MEASURING, *ON_NETWORK, *OF_TORCHREC)
"""Names of all rivals."""


def rival(name: str, placer: DreamShardPlacer | None, *, spec: AcceleratorSpec | None = None) -> Placer:
    """The rival `name`, which learns nothing of its own.

    Args:
        placer: whose cost network predicts costs; None if there is none.
        spec: hardware whose bandwidths TorchRec's planner assumes; None for TorchRec's defaults.

    Raises:
        ValueError: there is no such rival, or it lacks a cost network or something to measure on.
    """
    if name in OF_TORCHREC:
        return TorchRecPlanner.on(spec, name) if spec is not None else TorchRecPlanner(name=name)
    if name == MEASURING:
        raise ValueError(
            "rnn learns from costs that it measures, and here is nothing to measure on; measure it with "
            "`dreamshard compare champion rnn`"
        )
    if name not in ON_NETWORK:
        raise ValueError(f"there is no rival {name!r}, so nothing can place the tables; give one of {sorted(RIVALS)}")
    if placer is None:
        raise ValueError(
            f"{name} places by a trained cost network and there is none; train one with `dreamshard run`, or give "
            "torchrec_planner, which needs none"
        )
    columns = name == ON_NETWORK[1]
    return NeuroShardPlacer(placer.cost_network, placer.normaliser, columns, name)


def installed_rivals() -> list[str]:
    """All of `RIVALS`, without those of TorchRec if torchrec is not installed."""
    return [name for name in RIVALS if name not in OF_TORCHREC or find_spec("torchrec") is not None]
