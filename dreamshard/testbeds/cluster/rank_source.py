"""Where a cluster's ranks come from, and what a person reads if one fails."""

from typing import Protocol, runtime_checkable

from dreamshard.testbeds.base import MeasurementError
from dreamshard.testbeds.cluster.launch import LocalLauncher
from dreamshard.testbeds.cluster.layout import Layout
from dreamshard.testbeds.cluster.messages import DeviceType, ExchangeJob, PlacementJob
from dreamshard.testbeds.cluster.rank_launcher import RankTrouble
from dreamshard.testbeds.cluster.ranks import Ranks
from dreamshard.testbeds.cluster.reception import Reception
from dreamshard.testbeds.cluster.sharded.job import ShardingJob


@runtime_checkable
class RankSource(Protocol):
    """Where a cluster's ranks come from; ranks of several hosts outlive a testbed.

    Attributes:
        advice: what the next measurement does after a failure.
    """

    advice: str

    @property
    def layout(self) -> Layout | None:
        """Of all ranks; None if they are on this host and start when they are needed."""
        ...

    def running(self, num_devices: int, device_type: DeviceType) -> Ranks:
        """The ranks, started if none run; exactly `num_devices` if there is no `layout`.

        Raises:
            RankTrouble: a rank did not start.
        """
        ...

    def end_ranks(self) -> None:
        """End the ranks that run."""
        ...

    def close(self) -> None:
        """The testbed that had this source has closed."""
        ...


class LocalRanks:
    """Ranks on this host, as many as the task has devices; they end with the testbed."""

    layout: Layout | None = None
    advice = "the next measurement starts new ranks"

    def __init__(self) -> None:
        self._ranks: Ranks | None = None

    def running(self, num_devices: int, device_type: DeviceType) -> Ranks:
        """See `RankSource`."""
        if self._ranks is not None and len(self._ranks.layout.ranks) != num_devices:
            self.end_ranks()
        if self._ranks is None:
            reception = Reception()
            try:
                self._ranks = Ranks(LocalLauncher(num_devices, look_for_gpu=device_type == "cuda"), reception)
            finally:
                reception.close()
        return self._ranks

    def end_ranks(self) -> None:
        """See `RankSource`."""
        if self._ranks is not None:
            ranks, self._ranks = self._ranks, None
            ranks.end()

    def close(self) -> None:
        """See `RankSource`."""
        self.end_ranks()

    def pids(self) -> list[int]:
        """Process ids of the running ranks, in order."""
        return self._ranks.pids() if self._ranks else []


def measurement_error(
    trouble: RankTrouble,
    name: str,
    num_ranks: int,
    source: RankSource,
    job: PlacementJob | ExchangeJob | ShardingJob | None,
) -> MeasurementError:
    """One sentence about a rank's failure; its output is in the error's notes.

    Args:
        name: of what was measured.
        job: of that rank, if it had one.
    """
    layout = source.layout
    on_host = f" on host {trouble.host}" if trouble.host and layout is not None else ""
    with_tables = ""
    if isinstance(job, PlacementJob | ShardingJob):
        names = job.names
        first = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "no tables"
        with_tables = f", with {len(names)} tables on it ({first})"
    error = MeasurementError(
        f"measuring {name} failed on rank {trouble.rank} of {num_ranks}{on_host} while {trouble.stage}{with_tables}: "
        f"{trouble.what}. All ranks were ended; earlier samples are kept, and {source.advice}"
    )
    if trouble.detail:
        error.add_note(f"rank {trouble.rank}:\n{trouble.detail}")
    return error
