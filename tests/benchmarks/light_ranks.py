"""Many light ranks in one process, which answer as `rank.py` does but measure nothing.

python -m tests.benchmarks.light_ranks PORT KEY NUM_RANKS PER_HOST
"""

import pickle
import selectors
import sys
from multiprocessing.connection import Connection

import numpy as np

from dreamshard.testbeds.cluster import messages, reception
from dreamshard.testbeds.cluster.messages import STAGES

REPEATS = 15


def main(port: int, key: bytes, num_ranks: int, per_host: int) -> None:
    """Connect all ranks, then answer until the testbed is gone."""
    reception.allow_connections(num_ranks)
    ranks = selectors.DefaultSelector()
    for rank in range(num_ranks):
        connection = reception.connect(reception.LOOPBACK, port, key)
        host = f"host-{rank // per_host}"
        reception.send(connection, messages.Hello(rank, rank, host, "light", None))
        ranks.register(connection, selectors.EVENT_READ, connection)
    answer = messages.Answer(np.ones((REPEATS, 4)))
    try:
        while True:
            for key_of, _ in ranks.select():
                reply(key_of.data, answer)
    except (EOFError, OSError):
        pass  # the testbed has ended


def reply(connection: Connection, answer: messages.Answer) -> None:
    """Do as a rank does with one message."""
    message = pickle.loads(connection.recv_bytes())
    if isinstance(message, messages.PlacementJob):
        for stage in (*STAGES[3:], messages.IDLE):
            reception.send(connection, messages.StageReached(stage))
        reception.send(connection, answer)


if __name__ == "__main__":
    main(int(sys.argv[1]), bytes.fromhex(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
