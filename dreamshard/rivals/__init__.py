"""Published rivals, behind the same interface as every other placer.

by_name             builds rivals by the names that commands and reports use
rnn                 `rnn`: the LSTM encoder-decoder of Mirhoseini et al. 2017, trained on costs that it measures
neuroshard          `neuroshard`, `neuroshard_columns`: the search of Zha et al. 2023, on DreamShard's cost network
torchrec_planner    `torchrec_planner`, `torchrec_planner_columns`: TorchRec's planner, which measures and learns nothing
"""

from dreamshard.rivals.by_name import MEASURING, OF_TORCHREC, ON_NETWORK, RIVALS, installed_rivals, rival
from dreamshard.rivals.rnn import MEASUREMENTS, Measure, RnnPlacer, train_rnn

__all__ = [
    "MEASUREMENTS",
    "MEASURING",
    "OF_TORCHREC",
    "ON_NETWORK",
    "RIVALS",
    "Measure",
    "RnnPlacer",
    "installed_rivals",
    "rival",
    "train_rnn",
]
