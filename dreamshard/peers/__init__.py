"""Published rivals, behind the same interface as every other placer.

All but TorchRec's planner place by the cost network that DreamShard has trained, so a comparison is one of placing.

    by_name           builds rivals by the names that commands and reports use
    encoder_decoder   `rnn`: Mirhoseini et al. 2017, an LSTM encoder-decoder with attention
    autoshard         `autoshard`: Zha et al. 2022, one LSTM shared by all devices
    lstm_policies     what these two share: rollouts, training by REINFORCE, placing
    neuroshard        `neuroshard`: Zha et al. 2023, beam search over column splits with a greedy grid search inside
    torchrec_planner  `torchrec_planner`: TorchRec's planner, which measures and learns nothing
"""

from dreamshard.peers.by_name import LEARNED, PEERS, TrainedPerTask, installed_peers, peer, peers, trained_peer
from dreamshard.peers.lstm_policies import PeerTraining

__all__ = ["LEARNED", "PEERS", "PeerTraining", "TrainedPerTask", "installed_peers", "peer", "peers", "trained_peer"]
