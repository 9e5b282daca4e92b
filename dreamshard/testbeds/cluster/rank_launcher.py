"""What the testbed asks of whoever starts rank processes, and how it hears of their trouble."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol, runtime_checkable

from dreamshard.testbeds.cluster.messages import Hello
from dreamshard.testbeds.cluster.reception import Reception


@dataclass(eq=False)
class RankTrouble(Exception):  # noqa: N818 - caught where it becomes a MeasurementError
    """A failure of one rank, or of a host with its ranks.

    Attributes:
        rank: that failed, by its launcher's number.
        stage: one of `STAGES`.
        what: happened.
        detail: traceback or last lines of its output.
        host: of the rank, or empty if it never came.
        device: that the rank stands for; None if it never became one.
    """

    rank: int
    stage: str
    what: str
    detail: str
    host: str = ""
    device: int | None = None


@dataclass(frozen=True)
class RankExit:
    """How a rank ended.

    Attributes:
        rank: the one at fault, which may be another than the one asked about.
    """

    rank: int
    what: str
    log: str


@runtime_checkable
class RankLauncher(Protocol):
    """Starts rank processes, and knows how they ended."""

    num_ranks: int
    start_timeout_s: float

    def start(self, reception: Reception) -> None:
        """Start processes that connect to `reception`, and return before they do."""
        ...

    def signals(self) -> Sequence[Connection]:
        """Connections that are readable once a rank may have ended before it was ready."""
        ...

    def check(self, missing: Iterable[int]) -> None:
        """Raise a `RankTrouble` if one of the `missing` ranks will not come."""
        ...

    def admit(self, connection: Connection, message: object) -> None:
        """Take over a caller of the reception that is not a rank."""
        ...

    def ready(self, hello: Hello) -> None:
        """A rank has connected."""
        ...

    def exit_of(self, rank: int) -> RankExit:
        """How a rank ended whose connection broke; may end the others to find out."""
        ...

    def log_of(self, rank: int) -> str | None:
        """The last lines of a rank's output; None if its host does not answer. May end the rank."""
        ...

    def end(self, *, gently: bool) -> None:
        """End all ranks; with `gently` they end by themselves, unless they take too long."""
        ...
