"""What a launcher tells each of its processes through environment variables; pure.

torchrun, Kubernetes' PyTorchJob and many scripts set `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT`.
Where they are absent, those of Slurm's srun, Open MPI and MPICH (PMI, also Intel MPI) are used.
"""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

HOST = "DREAMSHARD_HOST"
"""Names this host; for containers that share one, and for several hosts of one name."""

DEFAULT_PORT = 29500
"""torch.distributed's."""

_NAMES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)


@dataclass(frozen=True, kw_only=True)
class LaunchedProcess:
    """One of the processes that a launcher started.

    Attributes:
        rank: number among all `num_ranks`.
        local_rank: number on its host.
        host: name of the host.
        address: of the host of rank 0, as is `port`.
        has_store: whether the launcher itself keeps a TCPStore there.
        attempt: how often the launcher has started all processes anew.
    """

    rank: int
    num_ranks: int
    local_rank: int
    host: str
    address: str
    port: int
    has_store: bool
    attempt: str


def num_launched(environment: Mapping[str, str]) -> int:
    """Processes that a launcher started together with this one; 1 without a launcher."""
    names = _names_in(environment)
    return 1 if names is None else _number(environment, names[1])


def launched_process(environment: Mapping[str, str]) -> LaunchedProcess | None:
    """This process among those of its launcher; None if no launcher started it.

    Raises:
        ValueError: there is no address of the first host, or a variable that should be a number is none.
    """
    names = _names_in(environment)
    if names is None:
        return None
    rank, num_ranks, local_rank = names
    address = environment.get("MASTER_ADDR") or _first_host(environment.get("SLURM_STEP_NODELIST", ""))
    if not address:
        raise ValueError(
            f"{rank} and {num_ranks} say that a launcher started this process, but MASTER_ADDR does not say where rank 0 is; "
            "set it to the address of the first host on every host"
        )
    return LaunchedProcess(
        rank=_number(environment, rank),
        num_ranks=_number(environment, num_ranks),
        local_rank=_number(environment, local_rank, 0),
        host=environment.get(HOST) or socket.gethostname(),
        address=address,
        port=_number(environment, "MASTER_PORT", _port(environment.get("SLURM_JOB_ID", ""))),
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def _names_in(environment: Mapping[str, str]) -> tuple[str, str, str] | None:
    return next((names for names in _NAMES if names[0] in environment and names[1] in environment), None)


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name) or ("" if default is None else str(default))
    if not text.isdecimal():
        raise ValueError(
            f"the launcher's variable {name} is {text!r}, which is no number, so this process cannot find the "
            "others; correct it"
        )
    return int(text)


def _first_host(nodes: str) -> str:
    """The first name of Slurm's list of nodes, such as `gpu[08-11,15],login`."""
    found = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", nodes)
    return "" if found is None else found[1] + (found[2] or "")


def _port(job: str) -> int:
    """A port for each Slurm job, so that two jobs on a host do not meet."""
    return DEFAULT_PORT if not job.isdigit() else 20_000 + int(job) % 10_000
