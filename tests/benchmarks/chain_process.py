"""One run of a recipe in its own process, with its CPU time by part; `bench_chain` starts two of them.

    python -m tests.benchmarks.chain_process chain|straight RECIPE TESTBED

`chain` does what `dreamshard run` does; `straight` calls the same library functions one after the other. Every few
milliseconds of CPU time, a signal charges them to the part of the program that the main thread is in. Prints one JSON
object: seconds by part.
"""

import json
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import torch

EVERY_S = 0.002
BACKGROUND = "background threads"


def _source(name: str) -> str:
    """A file or folder of the project; its existence is checked because a part whose files moved would count nothing."""
    path = Path(__file__).parents[2] / name
    assert path.exists(), path
    return f"{path}/" if path.is_dir() else str(path)


PARTS = (
    ("imports", ("<frozen importlib",)),
    ("MLflow", ("/site-packages/mlflow/",)),
    ("plots and artifacts", (_source("flows/reports"), "/prefect/artifacts.py")),
    ("checkpoints", (_source("storage/run_records/checkpoints.py"),)),
    ("library", (_source("dreamshard"),)),
    ("lake and catalog", (_source("storage"),)),
    ("Prefect's calls", ("",)),
)
"""A part, and a piece of the paths of its source files; a stack belongs to the first part that any of its frames matches."""


class Sampler:
    """Charges the main thread's CPU time to the parts of the program."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._main, self._all = time.thread_time(), time.process_time()
        self.seconds["imports"] = self._main  # so far: Python's start and this module's imports
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)

    def stop(self) -> dict[str, float]:
        """Seconds by part."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        return dict(self.seconds)

    def _look(self, _number: int, frame: FrameType | None) -> None:
        main, all_threads = time.thread_time(), time.process_time()
        self.seconds[part(frame)] += main - self._main
        self.seconds[BACKGROUND] += max(0.0, all_threads - self._all - (main - self._main))
        self._main, self._all = main, all_threads


def part(frame: FrameType | None) -> str:
    """The part of the program that a stack belongs to."""
    files = []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return next(name for name, words in PARTS if any(word in file for file in files for word in words))


def chain(recipe: str, testbed: str) -> float:
    """Do what `dreamshard run` does; returns the CPU seconds of Prefect's server, which is a separate process."""
    from flows.cli.command_options import enter

    enter(None)
    import psutil
    from prefect.server.api.server import SubprocessASGIServer

    from flows.retrain import retrain

    retrain(recipe=recipe, testbed=testbed)
    server = SubprocessASGIServer().server_process
    assert server is not None
    times = psutil.Process(server.pid).cpu_times()
    return float(times.user + times.system)


def straight(recipe: str, testbed: str) -> float:
    """Do the same by library calls alone; only the lookups are stored, because ranks read them from files."""
    from dreamshard.evaluation import evaluate
    from dreamshard.recipes import RECIPES
    from dreamshard.search import GreedyCostPlacer
    from dreamshard.search.baselines import baselines
    from dreamshard.tables import concatenate
    from dreamshard.task_sets.sampling import split_tables
    from dreamshard.testbeds import open_testbed
    from dreamshard.testbeds.base import TestbedSetup
    from dreamshard.training import TRAINING_ALGORITHMS
    from dreamshard.workloads import LookupFiles, open_workload, statistics, write_lookups

    config, seed = RECIPES[recipe], 0
    with TemporaryDirectory() as folder:
        described, files = [], {}
        for table in open_workload(config.workload).tables():
            described.append(statistics(table))
            files[table.name] = Path(folder) / f"{len(files)}.parquet"
            write_lookups(files[table.name], table.lookups)
        generator = torch.Generator().manual_seed(seed)
        sides, wanted = split_tables(concatenate(described), generator), config.tasks
        train, test = (
            wanted.drawn_from(half, count, generator)
            for half, count in zip(sides, (wanted.num_train, wanted.num_test), strict=True)
        )
        setup = TestbedSetup(
            num_devices=wanted.num_devices,
            batch_size=config.workload.batch_size,
            lookups=LookupFiles(files),
            seed=seed,
            warmups=config.measure.warmups,
            repeats=config.measure.repeats,
            timeout_s=config.measure.timeout_s,
        )
        bench = open_testbed(testbed, setup)
        algorithm = TRAINING_ALGORITHMS[config.training.algorithm]
        state, samples = algorithm.start(sides[0], config.training, seed), []
        for _ in range(config.training.iterations):
            samples += [bench.measure(task, placement) for task, placement in algorithm.propose(state, train)]
            algorithm.fit(state, samples)
            algorithm.improve(state, train)
        placer = algorithm.placer(state)
        contestants = {
            **baselines(seed),
            "cost_greedy": GreedyCostPlacer(placer.cost_network, placer.normaliser),
            "dreamshard": placer,
        }
        evaluate(
            contestants,
            test,
            lambda task, placement, _round: bench.measure(task, placement),
            predict=placer.predict,
            repeats=config.evaluation.repeats,
            seed=seed,
        )
        bench.close()
    return 0.0


def main() -> None:
    """Run the variant given on the command line."""
    torch.set_num_threads(1)
    sampler = Sampler()
    kind, recipe, testbed = sys.argv[1:4]
    try:
        server_s = (chain if kind == "chain" else straight)(recipe, testbed)
    finally:
        found = sampler.stop()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    found |= {"ranks": children.ru_utime + children.ru_stime, "Prefect's server": server_s}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
