"""Real CPU ranks for tests."""

import torch

from dreamshard.placement import Placement
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.cluster import ClusterTestbed
from tests.helpers.lookups import EvenLookups
from tests.helpers.tables import tables_of_dims

BATCH = 64
TABLES = tables_of_dims([4, 8, 128], rows=500)


def open_cluster(lookups=None, **options) -> ClusterTestbed:
    usual = {"num_devices": 2, "batch_size": BATCH, "lookups": lookups or EvenLookups(BATCH), "warmups": 1}
    return ClusterTestbed(TestbedSetup(**{**usual, "repeats": 5, "timeout_s": 60.0, **options}), "cpu")


def placement(*device: int, num_devices: int = 2) -> Placement:
    return Placement.whole(torch.tensor(device), num_devices)
