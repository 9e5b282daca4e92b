"""The published rivals, behind the same interface as every other placer.

`torchrec_planner` needs nothing, `neuroshard` a cost network, `rnn` and `autoshard` are trained on it as well; all four
get the cost network that DreamShard has trained, so that what is compared is how they place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, get_args

from dreamshard.peers.autoshard import train_autoshard
from dreamshard.peers.encoder_decoder import train_rnn
from dreamshard.peers.lstm_policies import PeerTraining, RecurrentPlacer
from dreamshard.peers.neuroshard import NeuroShardPlacer
from dreamshard.peers.torchrec_planner import TorchRecPlanner
from dreamshard.placement import Placement
from dreamshard.placer import Placer
from dreamshard.search.placer import DreamShardPlacer
from dreamshard.tasks import PlacementTask

Learned = Literal["rnn", "autoshard"]
LEARNED: tuple[Learned, ...] = get_args(Learned)
"""Rivals that are trained."""

PEERS = (*LEARNED, "neuroshard", "torchrec_planner")
"""Names of all rivals."""

_TRAIN = {"rnn": train_rnn, "autoshard": train_autoshard}


@dataclass(frozen=True)
class TrainedPerTask:
    """A learned rival that is trained anew, on predicted costs, for each task it is given.

    So did Mirhoseini et al.; it takes seconds to minutes per task, growing with the number of tables.
    """

    name: Learned
    placer: DreamShardPlacer
    seed: int = 0
    training: PeerTraining | None = None

    def place(self, task: PlacementTask) -> Placement:
        """Train on `task`, then place it; raises NoPlacementError where nothing fits."""
        return trained_peer(self.name, self.placer, [task], self.seed, self.training).place(task)


def trained_peer(
    name: Learned,
    placer: DreamShardPlacer,
    tasks: Sequence[PlacementTask],
    seed: int,
    training: PeerTraining | None = None,
) -> RecurrentPlacer:
    """The rival `name` trained across `tasks` on the cost network of `placer`.

    Raises:
        ValueError: there are no tasks; for `rnn` also where they differ in their number of devices.
    """
    return _TRAIN[name](placer.cost_network, placer.normaliser, tasks, seed, training)


def peer(name: str, placer: DreamShardPlacer | None, seed: int = 0) -> Placer:
    """The rival `name` for a single task; a learned one is trained for each task that it is given.

    Raises:
        ValueError: there is no such rival, or it needs a cost network and `placer` is None.
    """
    if name == "torchrec_planner":
        return TorchRecPlanner()
    if name not in PEERS:
        raise ValueError(f"there is no rival {name!r}, so nothing can place the tables; give one of {sorted(PEERS)}")
    if placer is None:
        raise ValueError(
            f"{name} places by a trained cost network and there is none; train one with `dreamshard run`, or give "
            "torchrec_planner, which needs none"
        )
    if name == "neuroshard":
        return NeuroShardPlacer(placer.cost_network, placer.normaliser)
    return TrainedPerTask("rnn" if name == "rnn" else "autoshard", placer, seed)


def peers(
    placer: DreamShardPlacer,
    train_tasks: Sequence[PlacementTask] | None,
    seed: int,
    training: PeerTraining | None = None,
) -> dict[str, Placer]:
    """Every rival by name, on the cost network of `placer`.

    Args:
        train_tasks: what `rnn` and `autoshard` are trained on, once, here; they take seconds. None to train them anew
            for each task they place, and in the time to place.
        training: None for the default figures.

    Returns:
        All of `PEERS`; without `torchrec_planner` where torchrec is not installed.

    Raises:
        ValueError: see `trained_peer`.
    """
    found: dict[str, Placer] = {}
    for name in LEARNED:
        found[name] = (
            TrainedPerTask(name, placer, seed, training)
            if train_tasks is None
            else trained_peer(name, placer, train_tasks, seed, training)
        )
    found["neuroshard"] = peer("neuroshard", placer)
    if find_spec("torchrec") is not None:
        found["torchrec_planner"] = TorchRecPlanner()
    return found
