"""Kill -9 at random moments of the chain: every reader still reads, and the same command ends as if undisturbed.

A home is used by one command after another until one of them ends: each is killed in the stage that was killed least so
far, at a moment drawn over the time that an undisturbed command spends in it, and the last one runs to its end. A command
that goes on after a kill skips or shortens what was done, so a kill may hit a later stage than was meant; a row counts what
was hit. Variants: forks of one process (cheap, so
that there are many), commands started as a person starts them, everything shared on an S3 server, and flow runs that a
Prefect worker started, which are retried or started again. What may differ from an undisturbed run are times of day, times
of placing, and the ids of MLflow's runs.
"""

import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.chaos.survived import Survived
from tests.helpers import forks
from tests.helpers.forks import Running
from tests.helpers.home_state import State, stage_of, state
from tests.helpers.killed_processes import ENDING_S, family_of, flow_process, left_over
from tests.helpers.moments import LOOK_S, Moment
from tests.helpers.s3_server import s3_server

KILLS = {"forks": 32, "started": 6, "s3": 8, "worker": 6}
RUN = ("run", "--recipe", "smoke", "--testbed", "simulated", "--json")
PARAMETERS = {"recipe": "smoke", "testbed": "simulated"}
_RETRY = {"type": "SCHEDULED", "name": "AwaitingRetry"}
_MOST_PER_HOME = 4
_END_S = 600.0


@dataclass
class Found:
    """What became of the kills of one variant.

    Attributes:
        stages: of the chain that were killed, and how often.
        problems: by kill.
        homes: whose last command ended.
    """

    stages: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    kills: int = 0
    broken: int = 0
    homes: int = 0

    def targets(self, stages: Sequence[str], count: int, draw: random.Random) -> list[str]:
        """The stages to kill in another home: those that were killed least, in the order of the chain."""
        least = sorted(stages, key=lambda stage: (self.stages[stage], draw.random()))[:count]
        return sorted(least, key=list(stages).index)

    def add(self, stages: list[str], problems: Mapping[int, list[str]], name: str) -> None:
        """Add a home."""
        self.homes += 1
        self.kills += len(stages)
        self.stages.update(stages)
        self.broken += len(problems)
        self.problems += [f"{name}, kill {number}: {'; '.join(each)}" for number, each in problems.items()]

    def row(self, what: str) -> Survived:
        """As a row of the table."""
        where = ", ".join(f"{count} in {stage}" for stage, count in self.stages.most_common())
        note = "; ".join([f"{self.homes} homes; {where}", *self.problems])
        return Survived(what=what, tried=self.kills, survived=self.kills - self.broken, note=note[:1500])


def run(scale: float, seed: int) -> list[Survived]:
    """A row for each variant."""
    counts = {name: max(1, round(count * scale)) for name, count in KILLS.items()}
    with tempfile.TemporaryDirectory(prefix="dreamshard-kills-") as name, forks.environment():
        folder = Path(name)
        with ExitStack() as stack:
            port = stack.enter_context(forks.prefect_server())
            bucket = stack.enter_context(s3_server(folder / "s3.log"))
            trial = Trial(folder, port, seed)
            variants: dict[str, Callable[[], Survived]] = {
                "worker": lambda: trial.under_worker(counts["worker"]),
                "started": lambda: trial.commands(
                    "kills of a command", "started", counts["started"], trial.start_as_people_do, {}
                ),
                "s3": lambda: trial.commands("kills of a command on S3", "s3", counts["s3"], trial.start, bucket),
                "forks": lambda: trial.commands("kills of a fork", "forks", counts["forks"], trial.start, {}),
            }
            with ThreadPoolExecutor(max(2, len(os.sched_getaffinity(0)))) as pool:
                rows = {name: pool.submit(each) for name, each in variants.items()}
            return [rows[name].result() for name in ("started", "forks", "s3", "worker")]


class Trial:
    """An undisturbed run, and the variants that must end as it did.

    Args:
        folder: for homes and logs.
        port: of the Prefect server that forks share.
        seed: of all kills.
    """

    def __init__(self, folder: Path, port: int, seed: int) -> None:
        self.folder, self.port, self.seed = folder, port, seed
        home = folder / "undisturbed"
        running = self.start(RUN, {"DREAMSHARD_HOME": str(home)}, folder / "undisturbed.log")
        self.spans_s: dict[str, float] = {}  # of the stages, in their order
        began, before = time.time(), time.monotonic()
        while (code := running.wait(LOOK_S)) is None:
            now, stage = time.monotonic(), stage_of(home, began)
            self.spans_s[stage] = self.spans_s.get(stage, 0.0) + now - before
            before = now
        if code != 0:
            raise RuntimeError(f"the undisturbed run failed, so nothing can be compared: {running.said()[-500:]}")
        self.wanted: State = forks.answer(state, {"DREAMSHARD_HOME": str(home)})
        if self.wanted.problems or len(self.wanted.models) != 1:
            raise RuntimeError(
                f"the undisturbed home is not as it should be: {self.wanted.problems[:3]}, {self.wanted.models}"
            )
        spans = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in self.spans_s.items())
        print(f"undisturbed: {spans}; {len(self.wanted.samples)} samples", flush=True)

    def start(self, arguments: tuple[str, ...], environment: Mapping[str, str], log: Path) -> Running:
        """A fork."""
        return forks.forked(arguments, environment, self.port, log)

    def start_as_people_do(self, arguments: tuple[str, ...], environment: Mapping[str, str], log: Path) -> Running:
        """A process of its own with a Prefect server of its own, as `dreamshard run` is started."""
        return forks.started(arguments, environment, log)

    def commands(
        self,
        what: str,
        name: str,
        kills: int,
        start: Callable[[tuple[str, ...], Mapping[str, str], Path], Running],
        shared: Mapping[str, str],
    ) -> Survived:
        """Homes one after another, until so many kills have hit."""
        draw, found, number = random.Random(f"{self.seed} {name}"), Found(), 0
        spans_s = self._with_start() if start == self.start_as_people_do else self.spans_s
        while found.kills < kills:
            number += 1
            home = self.folder / f"{name}-{number}"
            environment = {"DREAMSHARD_HOME": str(home), **shared}
            if shared:
                environment["DREAMSHARD_STORE"] = f"s3://team/{home.name}"
            targets = found.targets([*spans_s], min(_MOST_PER_HOME, kills - found.kills), draw)
            stages, problems = self._killed_home(home, environment, start, draw, targets, spans_s)
            found.add(stages, problems, home.name)
            print(f"{home.name}: killed in {', '.join(stages) or 'nothing'} {problems or ''}", flush=True)
        return found.row(what)

    def _with_start(self) -> dict[str, float]:
        """The stages' seconds in a process of its own, which first does what forks have done before."""
        began = time.monotonic()
        home = self.folder / "start"
        running = self.start_as_people_do(
            ("watch", "--recipe", "smoke"), {"DREAMSHARD_HOME": str(home)}, self.folder / "start.log"
        )
        running.wait(_END_S)
        return {**self.spans_s, "start": self.spans_s["start"] + time.monotonic() - began}

    def _killed_home(
        self,
        home: Path,
        environment: Mapping[str, str],
        start: Callable[[tuple[str, ...], Mapping[str, str], Path], Running],
        draw: random.Random,
        targets: Sequence[str],
        spans_s: Mapping[str, float],
    ) -> tuple[list[str], dict[int, list[str]]]:
        """Kill a command in each of these stages, and let the last one end: stages that were hit, problems by kill."""
        stages: list[str] = []
        problems: dict[int, list[str]] = {}
        known: frozenset[str] = frozenset()
        log = self.folder / f"{home.name}.log"
        while True:
            began, running = time.time(), start(RUN, environment, log)
            if len(stages) == len(targets):
                code = running.wait(_END_S)
                break
            target, group = targets[len(stages)], draw.random() < 0.5
            moment = Moment(home, began, [*spans_s], target, draw.uniform(0.0, spans_s[target]))
            while (code := running.wait(LOOK_S)) is None and not moment.has_come():
                continue
            if code is not None:
                break
            stage, family = stage_of(home, began), family_of(running.pid)
            forks.kill(running, group=group)
            running.wait(ENDING_S)
            stages.append(stage)
            wrong = left_over(family)
            now, more = self.look(environment)
            wrong += more
            if now is not None:
                wrong += [f"lost sample {sample}" for sample in known - now.samples]
                known = now.samples
            if wrong:
                problems[len(stages)] = [f"{moment.delay_s:.2f} s into {target}, in {stage}", *wrong]
        wrong = []
        if code != 0:
            forks.kill(running, group=True)
            wrong.append(f"not continued ({code}): {running.said()[-300:]}")
        now, more = self.look(environment)
        wrong += more
        if now is not None:
            wrong += self.differences(now)
        if wrong:
            problems.setdefault(max(1, len(stages)), []).extend(wrong)
        return stages, problems

    def look(self, environment: Mapping[str, str]) -> tuple[State | None, list[str]]:
        """The home as its readers see it, and what is wrong with it at any time."""
        wrong = []
        home = Path(environment["DREAMSHARD_HOME"])
        if not home.exists():
            return None, []
        if (home / "lake").exists() or "DREAMSHARD_STORE" in environment:
            log = self.folder / f"{home.name}-readers.log"
            for command in (("sql", "select count(*) from cost_samples", "--json"), ("models", "--json")):
                reading = self.start(command, environment, log)
                if (code := reading.wait(_END_S)) != 0:
                    wrong.append(f"{command[0]} exits with {code}: {reading.said()[-300:]}")
        try:
            now: State = forks.answer(state, environment)
        except RuntimeError as error:
            return None, [*wrong, str(error)]
        running = dict(now.statuses).get("RUNNING", 0)
        if running:
            wrong.append(f"{running} runs are still RUNNING in MLflow")
        return now, [*wrong, *now.problems]

    def differences(self, ended: State) -> list[str]:
        """What distinguishes a home that was killed and continued from the undisturbed one."""
        wrong = []
        if ended.models != self.wanted.models:
            wrong.append(f"versions {ended.models} instead of {self.wanted.models}")
        lost, more = (Counter(one.measured) - Counter(other.measured) for one, other in self._both(ended))
        if lost or more:
            wrong.append(
                f"{lost.total()} samples are lost, and {more.total()} are more than undisturbed: {[*more][:1]}"
            )
        if ended.evaluations != self.wanted.evaluations:
            wrong.append(f"{len(set(ended.evaluations) ^ set(self.wanted.evaluations))} evaluated rows differ")
        return wrong

    def _both(self, ended: State) -> tuple[tuple[State, State], tuple[State, State]]:
        return (self.wanted, ended), (ended, self.wanted)

    def under_worker(self, kills: int) -> Survived:
        """The process of a flow run that a worker started is killed; the run is retried, or started again."""
        from tests.flows.servers_up import servers_up

        draw, found, number = random.Random(f"{self.seed} worker"), Found(), 0
        spans_s = self._with_start()
        while found.kills < kills:
            number += 1
            home = self.folder / f"worker-{number}"
            targets = found.targets([*spans_s], min(_MOST_PER_HOME, kills - found.kills), draw)
            with servers_up(home) as servers:
                stages, problems = self._killed_flow_runs(servers, home, draw, targets, spans_s)
            found.add(stages, problems, home.name)
            print(f"{home.name}: killed in {', '.join(stages) or 'nothing'} {problems or ''}", flush=True)
        return found.row("kills of a flow run under a Prefect worker")

    def _killed_flow_runs(
        self,
        servers: "object",
        home: Path,
        draw: random.Random,
        targets: Sequence[str],
        spans_s: Mapping[str, float],
    ) -> tuple[list[str], dict[int, list[str]]]:
        from tests.flows.servers_up import Up, api, deployment, until

        assert isinstance(servers, Up)
        retrain = deployment(servers, "retrain")["id"]
        stages: list[str] = []
        problems: dict[int, list[str]] = {}
        environment = {"DREAMSHARD_HOME": str(home)}
        known: frozenset[str] = frozenset()
        run = ""
        while True:
            asked = time.time()
            if run and len(stages) % 2 == 1:
                api(servers, f"flow_runs/{run}/set_state", state=_RETRY, force=True)
            else:
                run = api(servers, f"deployments/{retrain}/create_flow_run", parameters=PARAMETERS)["id"]

            def process_of(run: str = run) -> psutil.Process | None:
                return flow_process(servers.process.pid, run)

            process = until(process_of, 300)
            if len(stages) < len(targets):
                target = targets[len(stages)]
                moment = Moment(home, asked, [*spans_s], target, draw.uniform(0.0, spans_s[target]))
                while process.is_running() and not moment.has_come():
                    time.sleep(LOOK_S)
                if process.is_running():
                    stages.append(stage_of(home, asked))
                    family = process.children(recursive=True)
                    process.kill()
                    problems |= {len(stages): left} if (left := left_over(family)) else {}

            def ended(run: str = run) -> str | None:
                (found,) = api(servers, "flow_runs/filter", flow_runs={"id": {"any_": [run]}})
                return found["state_type"] if found["state_type"] in ("COMPLETED", "FAILED", "CRASHED") else None

            outcome = until(ended, _END_S)
            now, wrong = self.look(environment)
            if now is not None:
                wrong += [f"lost sample {sample}" for sample in known - now.samples]
                known = now.samples
            if outcome == "FAILED":
                wrong.append("the flow run failed")
            if outcome == "COMPLETED" and now is not None:
                wrong += self.differences(now)
            if wrong:
                problems.setdefault(max(1, len(stages)), []).extend(wrong)
            if outcome != "CRASHED":
                return stages, problems
