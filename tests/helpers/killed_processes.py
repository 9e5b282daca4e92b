"""Processes of a command that is killed: those that it started, and what is left of them."""

import psutil

ENDING_S = 40.0  # for what a killed command started; the watchers wait 10 s before they kill


def family_of(pid: int) -> list[psutil.Process]:
    """Processes that a command has started; none if it has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def flow_process(above: int, run: str) -> psutil.Process | None:
    """The process of a flow run below a worker."""
    for process in psutil.Process(above).children(recursive=True):
        try:
            if process.environ().get("PREFECT__FLOW_RUN_ID") == run and "-m" in process.cmdline():
                return process
        except psutil.Error:
            continue  # it ended
    return None


def left_over(family: list[psutil.Process]) -> list[str]:
    """What still runs of a killed command after a while."""
    _, alive = psutil.wait_procs(family, timeout=ENDING_S)
    found = []
    for process in alive:
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            found.append(f"process {process.pid} was left: {' '.join(process.cmdline())[:80]}")
            process.kill()
    return found
