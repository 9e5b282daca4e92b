"""Published rivals, behind the same interface as every other placer.

A rival whose published form needs more than DreamShard's own measurements has two names: one that learns from measured costs
as published, and a cheaper one that places by the cost network that DreamShard has trained, where a comparison is one of
placing alone.

    by_name             builds rivals by the names that commands and reports use
    encoder_decoder     `rnn_predicted`: the LSTM encoder-decoder with attention of Mirhoseini et al. 2017, on predicted costs
    measured_rnn        `rnn`: the same policy, trained on costs that it measures
    lstm_policies       what these share: rollouts; and training by REINFORCE on predicted costs
    neuroshard          `neuroshard`, `neuroshard_predicted`, and both with `_columns`: Zha et al. 2023, grid and beam search
    neuroshard_models   the three cost models of `neuroshard`
    neuroshard_fitting  their fit to measured placements
    settings            checks training settings
    torchrec_planner    `torchrec_planner`, `torchrec_planner_columns`: TorchRec's planner, which measures and learns nothing
"""

from dreamshard.peers.by_name import (
    FITTED,
    LEARNED,
    MEASURING,
    OF_TORCHREC,
    ON_NETWORK,
    PEERS,
    PREDICTING,
    TrainedPerTask,
    installed_peers,
    peer,
    trained_peer,
)
from dreamshard.peers.lstm_policies import PeerTraining
from dreamshard.peers.measured_rnn import Measure, RnnTraining, trained_on_measurements

__all__ = [
    "FITTED",
    "LEARNED",
    "MEASURING",
    "OF_TORCHREC",
    "ON_NETWORK",
    "PEERS",
    "PREDICTING",
    "Measure",
    "PeerTraining",
    "RnnTraining",
    "TrainedPerTask",
    "installed_peers",
    "peer",
    "trained_on_measurements",
    "trained_peer",
]
