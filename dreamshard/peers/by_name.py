"""Build published rivals by name. A name that ends in `_columns` may split tables by columns; all others keep them whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from dreamshard.costs import CostSample
from dreamshard.peers.encoder_decoder import RNN_PREDICTED
from dreamshard.peers.lstm_policies import LstmPlacer, PeerTraining
from dreamshard.peers.measured_rnn import Measure, MeasuredRnn, RnnTraining, trained_on_measurements
from dreamshard.peers.neuroshard import NeuroShardPlacer, PredictedCosts
from dreamshard.peers.neuroshard_fitting import fitted_models
from dreamshard.peers.torchrec_planner import COLUMNS, WHOLE, TorchRecPlanner
from dreamshard.placement import Placement
from dreamshard.placer import Placer
from dreamshard.search import DreamShardPlacer
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.specs import AcceleratorSpec

_METHODS = {RNN_PREDICTED.name: RNN_PREDICTED}
MEASURING = "rnn"
"""The rival that measures placements in order to learn."""

_MAY_SPLIT = "_columns"
"""How the names of rivals end that may split tables by columns; all others keep them whole."""

FITTED = ("neuroshard", f"neuroshard{_MAY_SPLIT}")
"""Rivals that are fitted to placements that others have measured."""

ON_NETWORK = ("neuroshard_predicted", f"neuroshard_predicted{_MAY_SPLIT}")
"""The same search on a network that predicts what steps cost."""

LEARNED = tuple(_METHODS)
"""Rivals that are trained on predicted costs, without hardware."""

OF_TORCHREC = (WHOLE, COLUMNS)
"""TorchRec's planner, which is only there if torchrec is."""

PREDICTING = (*LEARNED, *ON_NETWORK)
"""Rivals that use a network which predicts what steps cost."""

PEERS = (MEASURING, *LEARNED, *FITTED, *ON_NETWORK, *OF_TORCHREC)
"""Names of all rivals."""


@dataclass(frozen=True)
class TrainedPerTask:
    """A rival that learns from predicted costs, and trains from scratch on each task before placing it.

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
    *,
    measure: Measure | None = None,
    measurements: int | None = None,
) -> LstmPlacer | MeasuredRnn:
    """Train the rival `name` on `tasks`.

    Args:
        placer: its cost network predicts costs for all but `rnn`, which has only its normaliser.
        training: of those that learn from predicted costs; None for the default.
        measure: measures placements for `rnn`, which needs it.
        measurements: placements that `rnn` measures; None for the default of `RnnTraining`.

    Raises:
        ValueError: there are no tasks, `rnn` has nothing to measure on, or it or `rnn_predicted` got tasks that differ in
            their number of devices.
    """
    if name == MEASURING:
        if measure is None:
            raise _nothing_to_measure_on()
        settings = RnnTraining() if measurements is None else RnnTraining(measurements=measurements)
        return trained_on_measurements(placer.normaliser, tasks, measure, seed, settings)
    return _METHODS[name].trained(placer.cost_network, placer.normaliser, tasks, seed, training or PeerTraining())


def peer(
    name: str,
    placer: DreamShardPlacer | None,
    seed: int = 0,
    training: PeerTraining | None = None,
    *,
    samples: Sequence[CostSample] = (),
    spec: AcceleratorSpec | None = None,
) -> Placer:
    """The rival `name`, without training tasks: one that learns from predicted costs trains anew on each task it places.

    Args:
        placer: whose cost network predicts costs; None if there is none.
        samples: measured placements that those of `FITTED` are fitted to. Where all their tables have one dim,
            `neuroshard_columns` keeps tables whole, for it does not know what narrower ones cost.
        spec: hardware whose bandwidths TorchRec's planner assumes; None for TorchRec's defaults.

    Raises:
        ValueError: there is no such rival, or it lacks a cost network, samples, or something to measure on.
    """
    if name not in PEERS:
        raise ValueError(f"there is no rival {name!r}, so nothing can place the tables; give one of {sorted(PEERS)}")
    if name in OF_TORCHREC:
        return TorchRecPlanner.on(spec, name) if spec is not None else TorchRecPlanner(name=name)
    if name == MEASURING:
        raise _nothing_to_measure_on()
    columns = name.endswith(_MAY_SPLIT)
    if name in FITTED:
        models = fitted_models(samples, seed)
        return NeuroShardPlacer(models, columns=columns and models.knows_dims, name=name)
    if placer is None:
        raise ValueError(
            f"{name} places by a trained cost network and there is none; train one with `dreamshard run`, or give "
            "torchrec_planner, which needs none"
        )
    if name in ON_NETWORK:
        return NeuroShardPlacer(PredictedCosts(placer.cost_network, placer.normaliser), columns, name)
    return TrainedPerTask(name, placer, seed, training)


def installed_peers() -> list[str]:
    """All of `PEERS`, without those of TorchRec if torchrec is not installed."""
    return [name for name in PEERS if name not in OF_TORCHREC or find_spec("torchrec") is not None]


def _nothing_to_measure_on() -> ValueError:
    return ValueError(
        "rnn learns from costs that it measures, and here is nothing to measure on, so it cannot be trained; use "
        "rnn_predicted, which learns from predicted costs, or measure it with `dreamshard compare champion rnn`"
    )
