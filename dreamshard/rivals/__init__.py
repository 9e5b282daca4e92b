"""Published rivals, behind the same interface as every other placer, and their names. `_columns` may split tables by columns.

neuroshard          `neuroshard`, `neuroshard_columns`: the search of Zha et al. 2023, on DreamShard's cost network
hugectr             `hugectr`: HugeCTR's planner, which measures and learns nothing; splits columns and rows as a task allows
torchrec_planner    `torchrec_planner`, `torchrec_planner_columns`: TorchRec's planner, which measures and learns nothing
"""

from importlib.util import find_spec

from dreamshard.hardware.accelerator import PRESETS, AcceleratorSpec
from dreamshard.placer import Placer
from dreamshard.rivals.hugectr import HugeCtrPlanner
from dreamshard.rivals.neuroshard import NeuroShardPlacer
from dreamshard.search import DreamShardPlacer

ON_NETWORK = ("neuroshard", "neuroshard_columns")
"""Rivals that search on a network that predicts what steps cost."""

OF_TORCHREC = ("torchrec_planner", "torchrec_planner_columns")
"""TorchRec's planner, which is only there if torchrec is."""

RIVALS = (*ON_NETWORK, *OF_TORCHREC, "hugectr")
"""Names of all rivals."""

__all__ = ["OF_TORCHREC", "ON_NETWORK", "RIVALS", "installed_rivals", "rival"]


def rival(name: str, placer: DreamShardPlacer | None, *, spec: AcceleratorSpec | None = None) -> Placer:
    """The rival `name`.

    Args:
        placer: whose cost network predicts costs; None if there is none.
        spec: hardware, with the bandwidths that the planners of TorchRec and HugeCTR assume; None for their defaults.

    Raises:
        ValueError: there is no such rival, torchrec is not installed, or there is no cost network.
    """
    if name not in installed_rivals():
        raise ValueError(
            f"{name} is no rival, or one of torchrec, which is not installed (`pip install --no-deps torchrec==1.8.0`); "
            f"give one of {installed_rivals()}"
        )
    if name in OF_TORCHREC:
        from dreamshard.rivals.torchrec_planner import TorchRecPlanner

        return TorchRecPlanner(spec, name=name, columns=name == OF_TORCHREC[1])
    if name == "hugectr":
        return HugeCtrPlanner(spec or PRESETS["h100"])
    if placer is None:
        raise ValueError(
            f"{name} places by a trained cost network and there is none; train one with `dreamshard run`, or give "
            "torchrec_planner, which needs none"
        )
    return NeuroShardPlacer(placer.cost_network, placer.normaliser, name == ON_NETWORK[1], name)


def installed_rivals() -> list[str]:
    """All of `RIVALS`, without those of TorchRec if torchrec is not installed."""
    return [name for name in RIVALS if name not in OF_TORCHREC or find_spec("torchrec") is not None]
