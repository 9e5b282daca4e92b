"""The testbed's side of keepers: the launcher of ranks on other hosts."""

import pickle
import selectors
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection, wait

from dreamshard.testbeds.cluster import messages
from dreamshard.testbeds.cluster.launch import END_TIMEOUT_S, START_TIMEOUT_S, describe_exit
from dreamshard.testbeds.cluster.layout import describe_ranks
from dreamshard.testbeds.cluster.messages import STAGES, Hello, KeeperHello, RankEnded
from dreamshard.testbeds.cluster.rank_launcher import RankExit, RankTrouble
from dreamshard.testbeds.cluster.reception import Reception, send

ANSWER_TIMEOUT_S = 5.0
"""For a keeper; it gives its rank `END_TIMEOUT_S` more to end gently."""

HOST_LOSS_S = 1.0
"""Within this time after the first, the connections of a dying host's other keepers break too."""


class KeeperPool:
    """A `RankLauncher` whose ranks are started by keepers that have joined.

    Args:
        num_ranks: keepers to wait for, one per rank.
        join_timeout_s: how long the first start waits for keepers to join.
        rejoin_timeout_s: how long a later start waits for those that were lost to join again.
        why_gone: says why a keeper, by its rank, may be gone, if its launcher knows; else empty.
    """

    def __init__(
        self,
        num_ranks: int,
        join_timeout_s: float,
        rejoin_timeout_s: float = 60.0,
        why_gone: Callable[[int], str] = lambda _rank: "",
    ) -> None:
        self.num_ranks = num_ranks
        self.start_timeout_s = START_TIMEOUT_S
        self._join_timeout_s = join_timeout_s
        self._rejoin_timeout_s = rejoin_timeout_s
        self._why_gone = why_gone
        self._keepers: dict[int, Connection] = {}
        self._hosts: dict[int, str] = {}  # also of those that are gone

    def start(self, reception: Reception) -> None:
        """See `RankLauncher`; first waits until every keeper has joined.

        Raises:
            RankTrouble: one has not joined in time.
        """
        timeout_s = self._rejoin_timeout_s if self._hosts else self._join_timeout_s
        self._drop_gone()
        deadline = time.monotonic() + timeout_s
        while missing := sorted(set(range(self.num_ranks)) - set(self._keepers)):
            if not wait([reception.fileno()], max(0.0, deadline - time.monotonic())):
                raise self._never_came(missing, timeout_s)
            caller = reception.accept()
            if caller is not None:
                self.admit(*caller)
        for rank in list(self._keepers):
            if not self._tell(rank, messages.StartRank()):
                raise self._gone(rank)

    def signals(self) -> Sequence[Connection]:
        """See `RankLauncher`."""
        return list(self._keepers.values())

    def check(self, missing: Iterable[int]) -> None:
        """See `RankLauncher`."""
        for rank in missing:
            if rank not in self._keepers or self._keepers[rank].poll():
                ended = self._end_rank(rank, gently=False)
                if ended is None:
                    raise self._gone(rank)
                what = f"{describe_exit(ended.exit_code)} before it was ready"
                raise RankTrouble(rank, STAGES[0], what, ended.log, self._hosts[rank])

    def admit(self, connection: Connection, message: object) -> None:
        """See `RankLauncher`; a keeper that joins again takes the place of its predecessor."""
        if not isinstance(message, KeeperHello) or not 0 <= message.rank < self.num_ranks:
            connection.close()
            return
        if message.rank in self._keepers:
            self._keepers.pop(message.rank).close()
        self._keepers[message.rank] = connection
        self._hosts[message.rank] = message.host

    def ready(self, hello: Hello) -> None:
        """See `RankLauncher`; keepers know their rank's process."""

    def exit_of(self, rank: int) -> RankExit:
        """See `RankLauncher`."""
        ended = self._end_rank(rank, gently=True)
        if ended is None:
            trouble = self._gone(rank)
            return RankExit(rank, trouble.what, "")
        return RankExit(rank, describe_exit(ended.exit_code), ended.log)

    def log_of(self, rank: int) -> str | None:
        """See `RankLauncher`; ends the rank."""
        ended = self._end_rank(rank, gently=False)
        return None if ended is None else ended.log

    def end(self, *, gently: bool) -> None:
        """See `RankLauncher`; a keeper that does not answer is gone."""
        asked = [rank for rank in list(self._keepers) if self._tell(rank, messages.EndRank(gently=gently))]
        deadline = time.monotonic() + ANSWER_TIMEOUT_S + (END_TIMEOUT_S if gently else 0.0)
        for rank in asked:
            self._answer(rank, deadline)

    def close(self, *, done: bool) -> None:
        """Let all keepers end.

        Args:
            done: whether what they were needed for succeeded, so that their launcher need not start them again.
        """
        for rank in list(self._keepers):
            self._tell(rank, messages.Goodbye(done))
        for connection in self._keepers.values():
            connection.close()
        self._keepers.clear()

    def _tell(self, rank: int, message: object) -> bool:
        """Send a message; False, and the keeper is dropped, if it is gone."""
        try:
            send(self._keepers[rank], message)
        except (KeyError, OSError):
            self._drop(rank)
            return False
        return True

    def _end_rank(self, rank: int, *, gently: bool) -> RankEnded | None:
        """End a rank, unless it has ended; how it did, or None, and the keeper is dropped, if that keeps silent."""
        if not self._tell(rank, messages.EndRank(gently)):
            return None
        return self._answer(rank, time.monotonic() + ANSWER_TIMEOUT_S + (END_TIMEOUT_S if gently else 0.0))

    def _answer(self, rank: int, deadline: float) -> RankEnded | None:
        """The keeper's answer to `EndRank`; what it said unasked before, if that has the exit code."""
        unasked: RankEnded | None = None
        try:
            while self._keepers[rank].poll(max(0.0, deadline - time.monotonic())):
                message: RankEnded = pickle.loads(self._keepers[rank].recv_bytes())
                if message.was_asked:
                    return unasked if message.exit_code is None and unasked else message
                unasked = message
        except (KeyError, EOFError, OSError):
            pass  # it is gone, as is one that keeps silent
        self._drop(rank)
        return None

    def _drop(self, rank: int) -> None:
        if rank in self._keepers:
            self._keepers.pop(rank).close()

    def _drop_gone(self) -> None:
        """Forget keepers whose connection broke while nobody listened."""
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._keepers.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            for rank in [key.data for key, _ in selector.select(0)]:
                self._end_rank(rank, gently=False)

    def _gone(self, rank: int) -> RankTrouble:
        """A host, or a process on it, that does not answer any more."""
        host = self._hosts[rank]
        deadline = time.monotonic() + HOST_LOSS_S
        while rest := [keeper for other, keeper in self._keepers.items() if self._hosts[other] == host]:
            if not wait(rest, max(0.0, deadline - time.monotonic())):
                break
            self._drop_gone()
        self._drop_gone()
        others = [other for other, its_host in self._hosts.items() if its_host == host and other not in self._keepers]
        what = (
            f"host {host} is gone with {describe_ranks({rank, *others})}, as when it dies, loses its network or its "
            "launcher ends"
        )
        if reason := self._why_gone(rank):
            what += f" ({reason})"
        return RankTrouble(rank, STAGES[0], what, "", host)

    def _never_came(self, missing: list[int], timeout_s: float) -> RankTrouble:
        host = self._hosts.get(missing[0], "")
        where = f" of host {host}" if host else ""
        what = (
            f"{describe_ranks(missing)} of {self.num_ranks}{where} did not join within {timeout_s:g} s; start the "
            "launcher on every host with the same address and port of the first one, and check that they can reach it"
        )
        reason = self._why_gone(missing[0])
        return RankTrouble(missing[0], STAGES[0], what, reason, host)
