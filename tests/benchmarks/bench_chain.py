"""Overhead of the pipeline: CPU time of `dreamshard run` over that of the same library calls made directly.

All processes count: the two children of this one, the ranks and Prefect's server. Both ways run on the simulated testbed,
and the difference is the overhead in seconds, printed by part. It hardly depends on what is measured, so the figure that
matters is its share of a default run, which also runs here, on real ranks, unless `--quick` is given.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory

from tests.benchmarks.measuring import Row, row

BAR = 0.15
METHOD = ("library", "ranks")
"""The parts that direct library calls have too; they have some of the imports."""


def rows(quick: bool = False) -> Iterator[Row]:
    """Overhead on the simulated testbed by part, then its share of a default run."""
    straight, chain = run("straight", "simulated"), run("chain", "simulated")
    added = {name: seconds - straight.get(name, 0.0) for name, seconds in chain.items()}
    overhead = sum(added.values())
    yield row("default recipe on the simulated testbed, library straight", sum(straight.values()), "s CPU")
    yield row("- the chain adds to it", overhead, "s CPU")
    for name, seconds in sorted(added.items(), key=lambda each: -each[1]):
        yield row(f"- - of it {name}", seconds, "s CPU")
    if quick:
        return
    real = run("chain", "auto")
    method = sum(real[name] for name in METHOD) + straight["imports"]
    yield row("default run on real ranks, library", method, "s CPU")
    yield row("- the chain adds to it", sum(real.values()) - method, "s CPU")
    yield row("- the chain adds, as a share", (sum(real.values()) - method) / method, "", BAR)


def run(kind: str, testbed: str) -> dict[str, float]:
    """CPU seconds by part of one run of the default recipe in a new home."""
    with TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.chain_process", kind, "default", testbed],
            env={**os.environ, "DREAMSHARD_HOME": home},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
