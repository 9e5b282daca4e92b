"""Testbeds that fail on purpose: simulated costs, and one fault each."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from dreamshard.costs import DeviceCosts, Infeasible
from dreamshard.testbeds import Capacity, MeasurementError, Testbed, open_testbed
from tests.helpers.testbeds import ByCount


class Faulty(Testbed):
    """Measures like `simulated`; calls `fault(count)` before each measurement."""

    name, hardware = "faulty", "simulated faults"

    def __init__(self, setup, fault=lambda count: None):
        self._inner, self._fault, self._count = open_testbed("simulated", setup), fault, 0

    def measure(self, task, placement):
        self._count += 1
        self._fault(self._count)
        return self._inner.measure(task, placement)


undisturbed = Faulty


def once(setup, name: str, fail) -> Faulty:
    """Fails at the 8th measurement of the first run in this home."""
    mark = Path(os.environ["DREAMSHARD_HOME"]) / name

    def fault(count):
        if count == 8 and not mark.exists():
            mark.touch()
            fail()

    return Faulty(setup, fault)


def killed_once(setup):
    """Kills the whole process."""
    return once(setup, "killed", lambda: os.kill(os.getpid(), signal.SIGKILL))


def interrupted_once(setup):
    """Ends as by Ctrl-C."""
    return once(setup, "interrupted", lambda: signal.default_int_handler(signal.SIGINT, None))


def dying(setup):
    """Loses a rank at the 4th measurement, and at every one after a restart."""
    mark = Path(os.environ["DREAMSHARD_HOME"]) / "died"

    def fault(count):
        if count >= 4 or mark.exists():
            mark.touch()
            raise MeasurementError("rank 1 died while measuring train-000; look at its traceback")

    return Faulty(setup, fault)


def hanging(setup):
    """Never answers, and writes an x into the home whenever it is closed."""

    class Hanging(Faulty):
        def measure(self, task, placement):
            self._count += 1
            while True:
                time.sleep(0.05)

        def close(self):
            with (Path(os.environ["DREAMSHARD_HOME"]) / "closed").open("a") as file:
                file.write("x" if self._count else "")

    return Hanging(setup)


class Slowing(ByCount):
    """Each measurement takes a hundredth longer than the one before."""

    factor = 1.0

    def measure(self, task, placement):
        Slowing.factor *= 1.01  # of all in this process
        sample = super().measure(task, placement)
        return replace(sample, costs=DeviceCosts(self.factor * sample.costs.phases_ms))


slowing = Slowing


class OnGpu(ByCount):
    """A GPU of which another process holds a part, so that no shard fits."""

    def capacity(self):
        return Capacity(kind="gpu")

    def measure(self, task, placement):
        misfit = Infeasible(device=1, asked_bytes=2**30, free_bytes=2**20, foreign_bytes=2**31)
        return replace(super().measure(task, placement), infeasible=misfit)


on_gpu = OnGpu
