"""Build published rivals by name."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from dreamshard.peers.autoshard import AUTOSHARD
from dreamshard.peers.encoder_decoder import ENCODER_DECODER
from dreamshard.peers.lstm_policies import LstmPlacer, PeerTraining
from dreamshard.peers.neuroshard import NeuroShardPlacer
from dreamshard.peers.torchrec_planner import TorchRecPlanner
from dreamshard.placement import Placement
from dreamshard.placer import Placer
from dreamshard.search import DreamShardPlacer
from dreamshard.tasks import PlacementTask

_METHODS = {method.name: method for method in (ENCODER_DECODER, AUTOSHARD)}
LEARNED = tuple(_METHODS)
"""Rivals that are trained."""

PEERS = (*LEARNED, "neuroshard", "torchrec_planner")
"""Names of all rivals."""


@dataclass(frozen=True)
class TrainedPerTask:
    """A learned rival that trains from scratch on each task before placing it, as Mirhoseini et al. did.

    Training takes seconds to minutes per task, growing with the number of tables.
    """

    name: str
    placer: DreamShardPlacer
    seed: int = 0
    training: PeerTraining | None = None

    def place(self, task: PlacementTask) -> Placement:
        """Train on `task`, then place it; raises NoPlacementError where nothing fits."""
        return trained_peer(self.name, self.placer, [task], self.seed, self.training).place(task)


def trained_peer(
    name: str,
    placer: DreamShardPlacer,
    tasks: Sequence[PlacementTask],
    seed: int,
    training: PeerTraining | None = None,
) -> LstmPlacer:
    """Train the rival `name` on `tasks`, with the cost network of `placer`.

    Raises:
        ValueError: there are no tasks; for `rnn` also if they differ in their number of devices.
    """
    return _METHODS[name].trained(placer.cost_network, placer.normaliser, tasks, seed, training or PeerTraining())


def peer(name: str, placer: DreamShardPlacer | None, seed: int = 0, training: PeerTraining | None = None) -> Placer:
    """The rival `name`; a learned one trains anew on each task that it places.

    Raises:
        ValueError: there is no such rival, or it needs a cost network and `placer` is None.
    """
    if name not in PEERS:
        raise ValueError(f"there is no rival {name!r}, so nothing can place the tables; give one of {sorted(PEERS)}")
    if name == "torchrec_planner":
        return TorchRecPlanner()
    if placer is None:
        raise ValueError(
            f"{name} places by a trained cost network and there is none; train one with `dreamshard run`, or give "
            "torchrec_planner, which needs none"
        )
    if name == "neuroshard":
        return NeuroShardPlacer(placer.cost_network, placer.normaliser)
    return TrainedPerTask(name, placer, seed, training)


def installed_peers() -> list[str]:
    """All of `PEERS`, without `torchrec_planner` if torchrec is not installed."""
    return [name for name in PEERS if name != "torchrec_planner" or find_spec("torchrec") is not None]


def peers(
    placer: DreamShardPlacer,
    train_tasks: Sequence[PlacementTask] | None,
    seed: int,
    training: PeerTraining | None = None,
) -> dict[str, Placer]:
    """Every installed rival by name, with the cost network of `placer`.

    Args:
        train_tasks: tasks that `rnn` and `autoshard` are trained on in this call. None: they train anew on each task
            that they place, which counts as time to place.

    Raises:
        ValueError: see `trained_peer`.
    """
    rivals = {name: peer(name, placer, seed, training) for name in installed_peers()}
    if train_tasks is not None:
        rivals |= {name: trained_peer(name, placer, train_tasks, seed, training) for name in LEARNED}
    return rivals
