"""A real rank that is killed or hangs in each of its stages: the command measures again with new ranks, and loses nothing.

The driver is told of each stage that a rank reaches, so the fault is in the driver: when the wanted rank reaches the wanted
stage for the given time, it is killed or stopped (SIGSTOP). `starting` is when its process is there, and `ending` is when
the driver tells it to end. A rank that fails in every attempt is one sentence.
"""

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from dreamshard.testbeds.cluster.messages import STAGES
from tests.chaos.survived import Survived
from tests.helpers import forks
from tests.helpers.home_state import state

PLACEMENTS = 3  # measured by each command
ENDING = "ending"
FAULTS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
_TIMEOUT_S = 15.0  # of a measurement; twice that with the start of the ranks
_END_S = 180.0
_OPTIONS = ("--recipe", "smoke", "--json")


@dataclass(frozen=True)
class Fault:
    """What happens to a rank.

    Attributes:
        stage: one of a rank's stages, or `ending`.
        signal: what it gets.
        rank: number of the rank.
        always: in every attempt, else in the first.
    """

    stage: str
    signal: int
    rank: int
    always: bool = False

    def install(self) -> None:
        """Make it happen in this process, and make measurements short."""
        from dreamshard import recipes
        from dreamshard.testbeds.cluster import launch, ranks

        short = recipes.MeasureConfig(timeout_s=_TIMEOUT_S, warmups=1, repeats=2)
        recipe = recipes.smoke()
        training = replace(recipe.training, placements_per_iteration=PLACEMENTS)
        recipes.RECIPES["smoke"] = lambda: replace(recipe, measure=short, training=training)
        launch.START_TIMEOUT_S = 2 * _TIMEOUT_S
        struck: list[int] = []

        def strike(pid: int) -> None:
            if self.always or not struck:
                struck.append(pid)
                os.kill(pid, self.signal)

        def after(call: Callable[..., Any]) -> Callable[..., Any]:
            def received(self_: Any, device: int) -> Any:
                message = call(self_, device)
                hello = self_.layout.ranks[device]
                if hello.rank == self.rank and getattr(message, "name", None) == self.stage:
                    strike(hello.pid)
                return message

            return received

        def gathering(call: Callable[..., Any]) -> Callable[..., Any]:
            def gather(self_: Any, arrived: Any) -> None:
                deadline = time.monotonic() + 30
                while not (found := _starting(self.rank)) and time.monotonic() < deadline:
                    time.sleep(0.02)
                strike(found[0])
                call(self_, arrived)

            return gather

        def ending(call: Callable[..., Any]) -> Callable[..., Any]:
            def end(self_: Any) -> None:
                strike(self_.layout.ranks[self.rank].pid)
                call(self_)

            return end

        changed: Any = ranks.Ranks
        if self.stage == STAGES[0]:
            changed._gather = gathering(changed._gather)
        elif self.stage == ENDING:
            changed.end = ending(changed.end)
        else:
            changed._receive = after(changed._receive)


def run(scale: float, seed: int) -> list[Survived]:
    """A row for ranks that are killed, one for those that hang, and one for ranks that fail in every attempt."""
    draw = random.Random(seed)
    stages = [*STAGES, ENDING]
    if scale < 1:
        stages = draw.sample(stages, max(1, round(scale * len(stages))))
    with tempfile.TemporaryDirectory(prefix="dreamshard-ranks-") as name, forks.environment():
        folder = Path(name)
        with forks.prefect_server() as port:
            ingested = forks.forked(
                ("ingest", "meta-dlrm-2021", "--recipe", "smoke"), _home(folder), port, folder / "ingest.log"
            )
            if ingested.wait(_END_S) != 0:
                raise RuntimeError(f"nothing could be ingested: {ingested.said()[-500:]}")
            rows = []
            for what, number in FAULTS.items():
                faults = [Fault(stage, number, draw.randrange(2)) for stage in stages]
                rows.append(_row(f"ranks {what} in each of their stages", faults, folder, port, draw))
            twice = [
                Fault(stage, number, draw.randrange(2), always=True)
                for stage, number in ((STAGES[3], signal.SIGKILL), (STAGES[5], signal.SIGSTOP))
            ]
            rows.append(_row("ranks that fail in every attempt", twice, folder, port, draw))
    return rows


def _home(folder: Path) -> dict[str, str]:
    return {"DREAMSHARD_HOME": str(folder / "home"), "DREAMSHARD_MEASURING_LOCK": str(folder / "measuring.lock")}


def _row(what: str, faults: list[Fault], folder: Path, port: int, draw: random.Random) -> Survived:
    problems, slowest = [], 0.0
    for fault in faults:
        began = time.monotonic()
        wrong = _attempt(fault, folder, port, draw.randrange(2**31))
        slowest = max(slowest, time.monotonic() - began)
        print(f"{what}: rank {fault.rank} while {fault.stage} {wrong or ''}", flush=True)
        if wrong:
            problems.append(f"rank {fault.rank} while {fault.stage}: {'; '.join(wrong)}")
    note = "; ".join([f"the slowest command ended after {slowest:.0f} s", *problems])
    return Survived(what=what, tried=len(faults), survived=len(faults) - len(problems), note=note[:1500])


def _attempt(fault: Fault, folder: Path, port: int, seed: int) -> list[str]:
    """What is wrong after one command with this fault."""
    environment, log = _home(folder), folder / f"{seed}.log"
    before = forks.answer(state, environment)
    command = ("profile", *_OPTIONS, "--testbed", "cluster:cpu", "--seed", str(seed))
    running = forks.forked(command, environment, port, log, fault.install)
    family: set[psutil.Process] = set()
    deadline, code = time.monotonic() + _END_S, None
    while code is None and time.monotonic() < deadline:
        family |= set(_below(running.pid))
        code = running.wait(0.2)
    wrong = []
    if code is None:
        forks.kill(running, group=True)
        wrong.append(f"it did not end within {_END_S:g} s")
    said = running.said()
    last = said.strip().splitlines()[-1:] or [""]
    if fault.always and (code != 1 or "rank" not in last[0] or "Traceback" in said or "--debug" in last[0]):
        wrong.append(f"exit code {code}: {last[0][:300]}")
    if not fault.always and code != 0:
        wrong.append(f"exit code {code}: {last[0][:300]}")
    _, alive = psutil.wait_procs(family, timeout=30)
    for process in alive:
        wrong.append(f"process {process.pid} was left")
        process.kill()
    after = forks.answer(state, environment)
    if before.samples - after.samples:
        wrong.append("samples are lost")
    if not fault.always and len(after.samples - before.samples) != PLACEMENTS:
        wrong.append(f"{len(after.samples - before.samples)} new samples instead of {PLACEMENTS}")
    return [*wrong, *after.problems]


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _starting(rank: int) -> list[int]:
    """The process of a rank of this process."""
    found = []
    for process in _below(os.getpid()):
        try:
            is_rank = "dreamshard.testbeds.cluster.rank" in process.cmdline()
            if is_rank and process.environ().get("RANK") == str(rank):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
